# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters on every architecture: the results of merged weights, and of each row alone (C16)."""

from pathlib import Path
from typing import Any

import kernels
import pytest
import torch
from architectures import NAMES, ROUND_SIZES, VOCAB, hugging_model, read_model
from effort import by_default
from tiny import drain, rig, sequence
from tiny_adapters import DIGESTS, logits_of, merge, random_layers, with_adapter

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.parameters.adapters import LowRank
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.sequences.prompt_keys import SaltedPrefix, UsedAdapter
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.facts.adapter_facts import adaptable_layers
from pontil.runtime.loaders.hf.adapter import PeftAdapter, read_adapter
from pontil.runtime.models.model import Model

PROMPT = torch.randint(0, VOCAB, (70,), generator=torch.Generator().manual_seed(3)).tolist()
DIFFERENT = ("llama", "qwen3_moe-dense", "gemma3_text", "deepseek_v3", "qwen3_next", "qwen3_5_text", "bamba")
PAIRS = [(name, fast) for name in NAMES for fast in (False, True)]


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    return kernels.opened()


def adapted(name: str, adapter: int, prompt: list[int] = PROMPT, max_tokens: int = 12) -> Sequence:
    return with_adapter(sequence(name, prompt, max_tokens, temperature=1.3, seed=5), adapter)


@pytest.mark.parametrize(
    ("name", "by_kernels"),
    by_default({("llama", False), *((name, True) for name in DIFFERENT)}, PAIRS),
)
def test_logits_equal_those_of_merged_weights(
    name: str, by_kernels: bool, tmp_path: Path, library: KernelLibrary
) -> None:
    hugging = hugging_model(name, ROUND_SIZES)
    hugging.save_pretrained(tmp_path)
    model = read_model(tmp_path, torch.float32, kernels=library if by_kernels else None)
    layers = [random_layers(model, seed, rank) for seed, rank in ((1, 4), (2, 5))]
    for number, one in enumerate(layers):
        model.adapters.made(one).put(number)
    with torch.inference_mode():
        plain = logits_of(model, -1, PROMPT)
        torch.testing.assert_close(plain, hugging(torch.tensor([PROMPT])).logits[0], atol=5e-4, rtol=1e-4)
        for number, one in enumerate(layers):
            merge(hugging, one)
            expected = hugging(torch.tensor([PROMPT])).logits[0]
            torch.testing.assert_close(logits_of(model, number, PROMPT), expected, atol=5e-4, rtol=1e-4)
            assert (expected - plain).abs().max() > 0.1
            merge(hugging, one, -1.0)


@pytest.mark.parametrize(
    ("name", "by_kernels"),
    by_default({("qwen2", True), ("deepseek_v3", True), ("qwen3_moe", False), ("qwen3_5_text", True)}, PAIRS),
)
def test_a_row_has_the_same_bits_alone_and_beside_other_adapters(
    name: str, by_kernels: bool, tmp_path: Path, library: KernelLibrary
) -> None:  # C16
    model = adapted_model(tmp_path, name, library if by_kernels else None)
    alone = {number: drawn(model, number) for number in (-1, 0, 1)}
    assert len(set(map(tuple, alone.values()))) == 3
    ours = rig(model, budget=50)
    for place, number in enumerate(alone):
        # Before each of them one of another adapter, which begins alike and earlier.
        ours.engine.add(adapted(f"other {place}", (number + 2) % 3 - 1, PROMPT[: 11 + 7 * place], 20))
        ours.engine.step()
        ours.engine.add(adapted(str(number), number))
    outputs = drain(ours.engine)
    assert {number: outputs[str(number)] for number in alone} == alone


def test_another_adapter_finds_no_prefix_of_this_one(tmp_path: Path, library: KernelLibrary) -> None:
    model = adapted_model(tmp_path, "llama", library)
    ours = rig(model)

    def cached(number: int, digest: str = "") -> int:
        one = adapted(f"{number} {digest}", number)
        if digest:
            one.prefix = SaltedPrefix(adapter=UsedAdapter(digest, number))
        ours.engine.add(one)
        drain(ours.engine)
        return one.history.cached

    assert [cached(number) for number in (-1, 0, 1, 0, -1, 1)] == [0, 0, 0, 69, 69, 69]
    # Another adapter of the same number, and the same one of another number.
    assert cached(0, "cc" * 32) == 0
    assert cached(1, DIGESTS[0]) == 69


def test_rows_of_one_adapter_are_neighbours_in_a_tile() -> None:
    numbers = [1, -1, 0, 1, 0, -1]
    spans = tuple(Span(adapted(f"{place}", number), place, 1) for place, number in enumerate(numbers))
    (tile,) = Batch(spans).mixed_tiles()
    assert [span.sequence.prefix.adapter.number for span in tile.spans] == sorted(numbers)
    assert [span.start for span in tile.spans] == [1, 5, 2, 4, 0, 3]
    # Drafts have to be in the first tile, whatever adapter has them.
    (tile, rest) = Batch((Span(spans[0].sequence, 70, 4, (1, 2, 3)), Span(spans[2].sequence, 0, 600))).mixed_tiles()
    assert [(span.count, len(span.drafts)) for span in tile.spans] == [(508, 0), (4, 3)] and rest.rows == 92


def test_the_names_that_a_launch_checks_are_those_that_may_have_adapters(tmp_path: Path) -> None:
    for name in DIFFERENT:
        hugging_model(name, ROUND_SIZES).save_pretrained(tmp_path / name)
        found = read_model(tmp_path / name).adapters.shapes
        assert found == adaptable_layers(read_config(tmp_path / name)), name


def test_a_layer_that_is_several_here_is_divided(tmp_path: Path) -> None:
    hugging_model("llama", ROUND_SIZES).save_pretrained(tmp_path)
    adapters = read_model(tmp_path).adapters
    gate, up = (f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up"))
    (outputs, inputs), one = adapters.shapes[gate], LowRank(torch.randn(2, 96), torch.randn(160, 2))
    own = PeftAdapter("", {"model.layers.0.mlp.gate_up_proj": one}).own(adapters.shapes, "a test")
    assert list(own) == [gate, up] and (outputs, inputs) == (80, 96)
    assert torch.equal(torch.cat([own[gate].up, own[up].up]), one.up) and torch.equal(own[up].down, one.down)


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [{"use_rslora": True}, {"alpha_pattern": {"v_proj": 3}, "rank_pattern": {"up_proj": 9}}], ids=str
)
def test_an_adapter_that_peft_saved_is_computed_as_peft_merges_it(
    options: dict[str, Any], tmp_path: Path, library: KernelLibrary
) -> None:
    peft = pytest.importorskip("peft")
    hugging = hugging_model("llama", ROUND_SIZES)
    hugging.save_pretrained(tmp_path)
    config = peft.LoraConfig(r=5, lora_alpha=7, target_modules="all-linear", init_lora_weights=False, **options)
    tuned = peft.get_peft_model(hugging, config)
    tuned.save_pretrained(tmp_path / "adapter")
    for by_kernels in (False, True):
        model = read_model(tmp_path, torch.float32, kernels=library if by_kernels else None)
        model.adapters.made(read_adapter(tmp_path / "adapter").own(model.adapters.shapes, "a test")).put(0)
        with torch.inference_mode():
            found = logits_of(model, 0, PROMPT)
            expected = tuned(torch.tensor([PROMPT])).logits[0]
            torch.testing.assert_close(found, expected, atol=5e-4, rtol=1e-4)
    merged = tuned.merge_and_unload()
    with torch.inference_mode():
        torch.testing.assert_close(found, merged(torch.tensor([PROMPT])).logits[0], atol=5e-4, rtol=1e-4)


def adapted_model(path: Path, name: str, library: KernelLibrary | None) -> Model:
    hugging_model(name, ROUND_SIZES).save_pretrained(path)
    model = read_model(path, torch.bfloat16, kernels=library)
    for number in range(2):
        model.adapters.made(random_layers(model, number + 1)).put(number)
    return model


def drawn(model: Model, number: int) -> list[int]:
    engine = rig(model).engine
    engine.add(adapted(str(number), number))
    return drain(engine)[str(number)]
