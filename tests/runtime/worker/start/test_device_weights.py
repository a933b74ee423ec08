# SPDX-License-Identifier: Apache-2.0
"""A worker on a GPU keeps the numbers of its files, unless it is told to unpack them."""

import gc
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import pytest
import torch
from architectures import hugging_model
from pretend_device import PretendDevice
from quantized_directory import FORMS, GPTQ, LARGE, gptq, quantize, write_quantized
from tiny_gguf import write_tiny_gguf
from tiny_llama import write_tiny_llama
from workers import Silent

from pontil.gpu_ops.collectives.communicator import SingleRank
from pontil.gpu_ops.products.linear import Linear
from pontil.gpu_ops.products.scaled_weights import JoinedLinear, ScaledLinear, StoredHead
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.layers.decoder import Decoder
from pontil.runtime.models.model import Model
from pontil.runtime.models.partition import Arithmetic
from pontil.runtime.models.stored_rows import DeviceRows
from pontil.runtime.models.weights import Weights
from pontil.runtime.probe.weight_memory import Ranks, weight_memory
from pontil.runtime.worker.start.draft_loading import draft_settings
from pontil.runtime.worker.start.loading import for_its_device, quantization_of, read_weights


@pytest.fixture(scope="module")
def there() -> PretendDevice:
    return PretendDevice()


def read(there: PretendDevice, path: Path, quantization: str) -> tuple[Model, str]:
    config = WorkerConfig(
        name="decode:0", role="decode", device="cuda:0", cores=(0,), model=str(path), served_model_name="tiny",
        control="", peer_endpoint="", quantization=quantization,
    )  # fmt: skip
    checkpoint = for_its_device(config, open_checkpoint(path))
    config = replace(config, quantization=quantization_of(config, checkpoint, "bfloat16", None))
    with there:
        weights = read_weights(config, checkpoint, there.device, "bfloat16", None, Silent())
        return build_model(checkpoint.config, weights), config.quantization


def stored(model: Model) -> list[bool]:
    return [isinstance(one, ScaledLinear) for one in model.linears]


def test_a_directory_with_an_order_of_inputs(there: PretendDevice, tmp_path: Path) -> None:
    """A CPU's kernels have none."""
    write_quantized(hugging_model("llama", LARGE), tmp_path, *FORMS["gptq-order"])
    model, chosen = read(there, tmp_path, "auto")
    assert chosen == "gguf" and all(stored(model))
    model, chosen = read(there, tmp_path, "none")
    assert chosen == "none" and not any(stored(model))
    with pytest.raises(ModelError, match="--quantization int8 needs a CPU's kernels"):
        read(there, tmp_path, "int8")


def test_orders_of_their_own_in_one_product_take_the_memory_that_a_plan_counts(
    there: PretendDevice, tmp_path: Path
) -> None:
    form = GPTQ | {"bits": 4, "group_size": 32, "desc_act": True}
    write_quantized(hugging_model("llama", LARGE), tmp_path, form, gptq(4, 32, False, shuffled=True, apart=True))
    model, _ = read(there, tmp_path, "auto")
    parts = [len(one.products) if isinstance(one, JoinedLinear) else 1 for one in model.linears]
    # Queries, keys and values, then outputs, gates and ups, and downs.
    assert parts == [3, 1, 2, 1] * model.config.num_layers
    products = [part for one in model.linears for part in (one.products if isinstance(one, JoinedLinear) else [one])]
    assert all(isinstance(part, ScaledLinear) for part in products)
    made = [part.on_device for part in products if isinstance(part, Linear)]
    taken = sum(part.nbytes for one in made for part in (one.numbers, one.scales) if part is not None)
    shapes = model.config.vocab_size * model.config.hidden_size
    said = weight_memory(tmp_path, model.config, "gguf", 2, on_host=False).held - 2 * 2 * shapes
    assert said == pytest.approx(taken - 8 * sum(one.outputs for one in made), rel=0.03)


@pytest.mark.parametrize(("device", "others"), [("cpu", ()), ("pretend:0", ("products=torch",))])
def test_other_kernels_are_for_the_target_on_a_device(
    there: PretendDevice, tmp_path: Path, device: str, others: tuple[str, ...]
) -> None:
    """A draft model's weights are not compared at the start."""
    write_quantized(hugging_model("llama", LARGE), tmp_path, *FORMS["float8-channel"])
    config = WorkerConfig("decode:0", "decode", device, (0,), str(tmp_path), "tiny", "", "", quantization="none")
    config = replace(config, kernel_backend=("products=torch",))
    checkpoint = open_checkpoint(tmp_path)
    weights = read_weights(config, checkpoint, torch.device(device), "bfloat16", None, Silent())
    assert weights.by_torch.names == others
    assert draft_settings(config, checkpoint, "bfloat16", None).kernel_backend == ()


@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_file_in_the_memory_that_a_plan_counts(there: PretendDevice, tmp_path: Path, tied: bool) -> None:
    config = write_tiny_llama(tmp_path / "hf", hidden_size=256, intermediate_size=512, tie_word_embeddings=tied)
    path = write_tiny_gguf(tmp_path / "x.gguf", tmp_path / "hf", config, kind=gguf.GGMLQuantizationType.Q4_0)
    model, chosen = read(there, path, "auto")
    assert chosen == "gguf" and all(stored(model))
    (head,) = model.head
    assert isinstance(model, Decoder) and isinstance(model.embedding, DeviceRows) and isinstance(head, StoredHead)
    rows = model.embedding.weights.on_device(torch.bfloat16, None)
    assert (head.on_device.numbers._base is rows.numbers) == tied, "a tied head takes no memory"
    products = [*model.linears, *([] if tied else [head])]
    made = [rows, *(one.on_device for one in products if isinstance(one, Linear))]
    taken = sum(part.nbytes for one in made for part in (one.numbers, one.scales) if part is not None)
    said = weight_memory(path, model.config, "gguf", 2, on_host=False).held
    units = 8 * sum(one.outputs for one in made)
    assert said == pytest.approx(taken - units, rel=0.02)
    # A rank's part of a tied head is a view.
    assert weight_memory(path, model.config, "gguf", 2, Ranks(2), on_host=False).held < said
    with there:
        ids = torch.zeros(3, dtype=torch.int64, device=there.device)
    with there, there.recording() as tape:
        hidden = model.embed(ids)
        assert hidden.shape == (3, config.hidden_size) and model.logits(hidden).dtype == torch.float32
    assert tape.to_device == tape.to_host == 0 and "product_kernel" in tape.kernels


@dataclass(frozen=True)
class FirstOfTwo(SingleRank):
    """A rank whose model is read, and computes nothing."""

    rank: int = 0
    size: int = 2


@pytest.mark.parametrize(("name", "ranks"), [("qwen3_moe", Ranks()), ("llama", Ranks(2, row_parallel=True))])
def test_inputs_in_orders_of_their_own_take_what_a_plan_counts(name: str, ranks: Ranks, tmp_path: Path) -> None:
    """Experts that have them, and parts of such inputs, become numbers."""
    there, group = PretendDevice(), 8
    hugging_model(name, LARGE).save_pretrained(tmp_path)
    form = {"bits": 4, "group_size": group, "desc_act": True}
    quantize(tmp_path, GPTQ | form, gptq(4, group, False, shuffled=True))
    checkpoint = open_checkpoint(tmp_path).for_device()
    rank = SingleRank() if ranks.size == 1 else FirstOfTwo()
    arithmetic = Arithmetic(row_parallel=ranks.row_parallel)
    with there:
        weights = Weights(
            checkpoint.levels(torch.bfloat16), there.device, torch.bfloat16, None, rank, arithmetic=arithmetic
        )
        model = build_model(checkpoint.config, weights)
    gc.collect()
    assert isinstance(model, Decoder)
    # Angles of positions are no weights.
    taken = there.rooms[0].taken() - model.global_rotary.cos.nbytes - model.global_rotary.sin.nbytes
    said = weight_memory(tmp_path, model.config, "gguf", 2, ranks, on_host=False).held
    # Units of outputs and orders are a twentieth of so small a model.
    assert said == pytest.approx(taken, rel=0.08)
