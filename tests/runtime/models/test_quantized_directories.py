# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose weights are whole numbers or floats of 8 bits: the results of the weights that they stand for."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from architectures import VOCAB, hugging_model, read_model
from company import TOKENS, alone_in_company_and_again, handed_over
from effort import by_default
from kernels import opened
from quantized_directory import (
    EIGHT_BITS,
    FORMS,
    FP8,
    LARGE,
    PACKED,
    UNPACKED,
    compressed,
    float8,
    packed,
    quantize,
    write_quantized,
)
from safetensors.torch import load_file, save_file
from tiny import rig, sequence
from transformers import PreTrainedModel

from pontil.gpu_ops.kernels.linear import matrix_of
from pontil.gpu_ops.kernels.weights.matrix import GROUP
from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights
from pontil.gpu_ops.kernels.weights.structures import BFLOAT16, BYTES, EIGHTS, NIBBLES
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.facts.layout import tensor_shapes
from pontil.runtime.loaders.facts.shards import WHOLE
from pontil.runtime.loaders.level_formats import level_formats
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.model import Model
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.probe.weight_memory import weight_memory

BLOCKS = float8((128, 128), "weight_scale_inv")
PROMPT = torch.randint(0, VOCAB, (70,), generator=torch.Generator().manual_seed(3)).tolist()


def logits(model: Model) -> torch.Tensor:
    ours, one = rig(model), sequence("a", PROMPT)
    ours.scheduler.add(one)
    ours.scheduler.admit()
    ours.scheduler.memory.grow(one, len(PROMPT))
    (tile,) = Batch((Span(one, 0, len(PROMPT)),)).tiles()
    return ours.runner.tiles.project(ours.runner.tiles.forward(plan_of(tile, [*range(len(PROMPT))], [], [])))


@dataclass(frozen=True)
class Written:
    """A directory, and a model of transformers with the weights that it stands for."""

    folder: Path
    hugging: PreTrainedModel


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    """A directory in each form."""
    made = {name: Written(tmp_path_factory.mktemp(name), hugging_model("llama", LARGE)) for name in FORMS}
    for name, one in made.items():
        write_quantized(one.hugging, one.folder, *FORMS[name])
    return made


@pytest.fixture(scope="module")
def folders(written: dict[str, Written]) -> dict[str, Path]:
    return {name: one.folder for name, one in written.items()}


@pytest.mark.parametrize("name", FORMS)
def test_logits_equal_those_of_the_weights_that_a_file_stands_for(written: dict[str, Written], name: str) -> None:
    checkpoint, hugging = open_checkpoint(written[name].folder), written[name].hugging
    tensors, theirs = dict(checkpoint.tensors(torch.float32)), hugging.state_dict()
    assert sorted(tensors) == sorted(tensor_shapes(checkpoint.config))
    assert all((tensor - theirs[one]).abs().max() <= 1e-6 * theirs[one].abs().max() for one, tensor in tensors.items())
    with torch.inference_mode():
        expected = hugging(torch.tensor([PROMPT])).logits[0]
    assert (logits(read_model(written[name].folder)) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("name", FORMS)
def test_whole_numbers_are_those_of_the_weights_that_they_stand_for(folders: dict[str, Path], name: str) -> None:
    checkpoint = open_checkpoint(folders[name])
    tensors, levels = dict(checkpoint.tensors(torch.float32)), dict(checkpoint.levels(torch.float32))
    counted = [one.removesuffix(".offsets") for one in levels if one.endswith(".offsets")]
    unpacked = name in UNPACKED
    assert checkpoint.has_levels == (not unpacked) and len(checkpoint.unpacked_types) == unpacked
    assert len(counted) == (0 if unpacked else 7 * 2)
    assert sorted(one for one in levels if one in tensors) == sorted(set(tensors) - set(counted))
    for one in counted:
        numbers, *factors = (levels[f"{one}.{part}"] for part in ("numbers", "scales", "offsets"))
        floats = numbers.dtype == torch.float8_e4m3fn
        found = QuantizedWeights(numbers.view(torch.uint8) if floats else numbers, *factors, floats=floats)
        torch.testing.assert_close(found.dense(), tensors[one], atol=1e-6 * tensors[one].abs().max().item(), rtol=0)
    assert sorted(counted) == (sorted(level_formats(folders[name], checkpoint.config)) if counted else [])


def by_kernels(folder: Path) -> Model:
    checkpoint = open_checkpoint(folder)
    tensors = checkpoint.levels(torch.bfloat16, stored_rows=True)
    return build_model(checkpoint.config, Weights(tensors, torch.device("cpu"), torch.bfloat16, Packing.of(opened())))


# One of each kind of product; how each form is read is seen above.
@pytest.mark.parametrize("name", by_default({"awq", "gptq-order", "packed-5", "bytes", "float8-channel"}, FORMS))
def test_kernels_multiply_whole_numbers_and_round_no_more_than_bfloat16_does(
    folders: dict[str, Path], name: str
) -> None:
    model = by_kernels(folders[name])
    kinds = {matrix_of(product).kind for product in model.linears}
    kind = EIGHTS if name.startswith("f") else BYTES if name in EIGHT_BITS else NIBBLES
    assert kinds == {BFLOAT16 if name in UNPACKED else kind}
    expected = logits(read_model(folders[name]))
    rounded = logits(read_model(folders[name], torch.bfloat16, kernels=opened()))
    spread = expected.std()
    errors = [((one - expected).square().mean().sqrt() / spread).item() for one in (logits(model), rounded)]
    assert errors[0] < 1.5 * errors[1] + 1e-3


def test_blocks_of_floats_of_8_bits_are_multiplied_as_they_are(tmp_path: Path) -> None:
    """With a scale for 128 outputs and inputs, as DeepSeek V3 is published; torch has the same weights."""
    write_quantized(hugging_model("llama", LARGE), tmp_path, FP8 | {"weight_block_size": [128, 128]}, BLOCKS)
    model, expected = by_kernels(tmp_path), logits(read_model(tmp_path))
    assert {matrix_of(product).kind for product in model.linears} == {EIGHTS}
    rounded = logits(read_model(tmp_path, torch.bfloat16, kernels=opened()))
    errors = [(one - expected).square().mean().sqrt() / expected.std() for one in (logits(model), rounded)]
    assert errors[0] < errors[1]
    assert weight_memory(tmp_path, model.config, "gguf", 2).held == pytest.approx(taken(model), rel=0.02)
    kept = weight_memory(tmp_path, model.config, "none", 2, has_kernels=False).held
    assert kept == pytest.approx(taken(model), rel=0.02)
    prompt = PROMPT * 4
    assert handed_over(model, prompt[:150], TOKENS) == alone_in_company_and_again(model, prompt)


@pytest.mark.parametrize(
    "name",
    by_default({"awq", "gptq-8"}, ["awq", "awq-128", "gptq-8", "gptq-order", "packed-zeros", "float8-channel"]),
)
def test_company_chunks_replay_and_a_handoff_change_nothing(folders: dict[str, Path], name: str) -> None:
    model, prompt = by_kernels(folders[name]), PROMPT * 4
    assert handed_over(model, prompt[:150], TOKENS) == alone_in_company_and_again(model, prompt)


@pytest.mark.parametrize("name", [name for name in FORMS if name not in UNPACKED])
def test_weights_take_the_memory_that_a_plan_counts(folders: dict[str, Path], name: str) -> None:
    model = by_kernels(folders[name])
    said = weight_memory(folders[name], model.config, "gguf", 2)
    assert said.held == pytest.approx(taken(model), rel=0.02)
    plain = weight_memory(folders[name], model.config, "none", 2)
    assert said.held < plain.held and plain.packing > 0


def taken(model: Model) -> float:
    """The bytes of a model's packed products, without outputs that pad them, and of its embedding."""
    parts = 0.0
    for one in map(matrix_of, (*model.linears, *model.head)):
        used = one.outputs / (len(one.data) * GROUP)
        parts += sum(used * part.nbytes for part in (one.data, one.scales) if part is not None)
    return parts + model.config.vocab_size * model.config.hidden_size * 2


def square(size: int) -> dict[str, int]:
    """A model whose weights have so many inputs, all of them."""
    sizes = dict.fromkeys(("hidden_size", "intermediate_size"), size)
    return LARGE | sizes | {"num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.mark.parametrize("group", [48, 80, 96])
def test_groups_that_packing_divides_are_counted_as_it_divides_them(tmp_path: Path, group: int) -> None:
    form = compressed(PACKED, num_bits=4, type="int", strategy="group", group_size=group)
    write_quantized(hugging_model("llama", square(2 * group)), tmp_path, form, packed(4, group, True))
    model = by_kernels(tmp_path)
    assert weight_memory(tmp_path, model.config, "gguf", 2).held == pytest.approx(taken(model), rel=0.02)


def test_bytes_with_one_scale_an_output_are_counted_as_they_are_packed(tmp_path: Path) -> None:
    """Exact sums do not fit 96 inputs, so that their scale is there three times."""
    hugging_model("llama", square(96)).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    tensors, packing = checkpoint.tensors(torch.bfloat16), Packing.of(opened(), int8=True)
    model = build_model(checkpoint.config, Weights(tensors, torch.device("cpu"), torch.bfloat16, packing))
    assert weight_memory(tmp_path, model.config, "int8", 2).held == pytest.approx(taken(model), rel=0.02)


@pytest.mark.parametrize(
    "name", by_default({"qwen2", "glm4_moe"}, ["qwen2", "qwen3_moe", "mixtral", "deepseek_v2", "glm4_moe"])
)
def test_every_product_of_an_architecture_may_be_quantized(tmp_path: Path, name: str) -> None:
    """Routers too, which are floats all the same, and the parts of latents."""
    plain, quantized = tmp_path / "plain", tmp_path / "quantized"
    sizes = LARGE | {"moe_intermediate_size": 64, "q_lora_rank": 32, "qk_rope_head_dim": 16, "v_head_dim": 48}
    hugging_model(name, sizes).save_pretrained(plain)
    shutil.copytree(plain, quantized)
    stands_for = quantize(quantized, *FORMS["gptq-v2"], kept=("embed_tokens", "lm_head"))
    tensors = {one: torch.from_numpy(weight).float() for one, weight in stands_for.items()}
    save_file(load_file(plain / WHOLE) | tensors, plain / WHOLE, metadata={"format": "pt"})
    expected = logits(read_model(plain))
    torch.testing.assert_close(logits(read_model(quantized)), expected, atol=2e-5, rtol=0)
    rounded = logits(read_model(plain, torch.bfloat16, kernels=opened()))
    # A row's choice of experts may change by rounding, so errors are compared where most rows have theirs.
    errors = [(one - expected).abs().median().item() for one in (logits(by_kernels(quantized)), rounded)]
    assert errors[0] < 1.5 * errors[1]
