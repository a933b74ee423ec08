# SPDX-License-Identifier: Apache-2.0
"""Adapters that are in use from a position of the prompt on: the rows before it are the model's own, to the bit."""

from collections.abc import Sequence as Numbers
from pathlib import Path

import kernels
import pytest
import torch
from architectures import ROUND_SIZES, VOCAB, hugging_model, read_model
from effort import by_default
from tiny import Rig, drain, rig, sequence
from tiny_adapters import DIGESTS, random_layers
from torch import Tensor, nn
from transformers import PreTrainedModel

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.tile import TileSpan, adapters_of_rows
from pontil.gpu_ops.parameters.adapters import NO_ADAPTER, LowRank
from pontil.runtime.cache.adaptation import Adaptation
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.sequences.prompt_keys import SaltedPrefix, UsedAdapter
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.loaders.hf.adapter import read_adapter
from pontil.runtime.models.model import Model

PROMPT = torch.randint(0, VOCAB, (70,), generator=torch.Generator().manual_seed(3)).tolist()
START = 37
# Models of one kind each: plain attention, latent attention, and recurrent layers.
KINDS = ("llama", "deepseek_v3", "qwen3_5_text")
PAIRS = [(name, fast) for name in KINDS for fast in (False, True)]


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    return kernels.opened()


def activated(name: str, start: int | None, prompt: Numbers[int] = PROMPT, number: int = 0) -> Sequence:
    """A sequence with an adapter from a position on; None: without one."""
    one = sequence(name, list(prompt), 12, temperature=1.3, seed=5)
    if start is not None:
        one.prefix = SaltedPrefix("", UsedAdapter(DIGESTS[number], number), start)
    return one


def logits(model: Model, one: Sequence, cuts: Numbers[int] = ()) -> Tensor:
    """Return the logits of all positions of a prompt that is computed in some steps."""
    ours = rig(model)
    ours.scheduler.add(one)
    ours.scheduler.admit()
    ours.scheduler.memory.grow(one, len(one.prompt))
    found, ends = list[Tensor](), [*cuts, len(one.prompt)]
    for first, end in zip([0, *cuts], ends, strict=True):
        (tile,) = Batch((Span(one, first, end - first),)).mixed_tiles()
        found.append(ours.runner.tiles.project(ours.runner.tiles.forward(plan_of(tile, [*range(tile.rows)], [], []))))
    return torch.cat(found)


class FromPosition(nn.Module):
    """A linear layer to which an adapter adds something from a position on: what the paper defines."""

    def __init__(self, layer: nn.Module, one: LowRank, start: int) -> None:
        super().__init__()
        self.layer, self.one, self.start = layer, one, start

    def forward(self, x: Tensor) -> Tensor:
        added = x @ self.one.down.T @ self.one.up.T
        added[:, : self.start] = 0
        made: Tensor = self.layer(x)
        return made + added


def adapt(hugging: PreTrainedModel, layers: dict[str, LowRank], start: int) -> None:
    for name, one in layers.items():
        above, _, last = name.rpartition(".")
        parent = hugging.get_submodule(above)
        setattr(parent, last, FromPosition(getattr(parent, last), one, start))


@pytest.mark.parametrize(
    ("name", "by_kernels"),
    by_default(
        {("llama", False), ("llama", True), ("qwen3_5_text", True)},
        [(name, fast) for name in ("llama", "qwen3_5_text") for fast in (False, True)],
    ),
)
def test_logits_are_those_of_layers_that_are_adapted_from_a_position_on(
    name: str, by_kernels: bool, tmp_path: Path, library: KernelLibrary
) -> None:
    hugging = hugging_model(name, ROUND_SIZES)
    hugging.save_pretrained(tmp_path)
    model = read_model(tmp_path, torch.float32, kernels=library if by_kernels else None)
    layers = random_layers(model, 1)
    model.adapters.made(layers).put(0)
    with torch.inference_mode():
        plain, found = logits(model, activated("plain", None)), logits(model, activated("late", START))
        assert torch.equal(found[:START], plain[:START]) and (found[START:] - plain[START:]).abs().max() > 0.1
        adapt(hugging, layers, START)
        torch.testing.assert_close(found, hugging(torch.tensor([PROMPT])).logits[0], atol=1e-4, rtol=1e-4)
        for cuts in ((START,), (START - 1, START + 1), (16, 50)) if by_kernels else ():
            assert torch.equal(logits(model, activated("late", START), cuts), found), cuts


def test_an_adapter_that_peft_activates_is_computed_as_peft_does(tmp_path: Path, library: KernelLibrary) -> None:
    """PEFT finds the start itself; of a prompt without the tokens it computes the model alone."""
    peft = pytest.importorskip("peft")
    hugging = hugging_model("llama", ROUND_SIZES)
    hugging.save_pretrained(tmp_path)
    tokens = PROMPT[START : START + 3]
    tuned = peft.get_peft_model(
        hugging,
        peft.LoraConfig(
            r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM",
            alora_invocation_tokens=tokens,
        ),
    )  # fmt: skip
    tuned.save_pretrained(tmp_path / "adapter")
    twice = [*PROMPT, *tokens, 5, 6]
    model = read_model(tmp_path, torch.float32, kernels=library)
    read = read_adapter(tmp_path / "adapter")
    assert read.invocation == tuple(tokens)
    model.adapters.made(read.own(model.adapters.shapes, "a test")).put(0)
    for prompt, start in ((PROMPT, START), (twice, len(PROMPT)), (PROMPT[:START], None)):
        adapted = Adaptation.of(read.digest, read.invocation, prompt)
        assert adapted == (Adaptation() if start is None else Adaptation(read.digest, start))
        with torch.inference_mode():
            expected = tuned(input_ids=torch.tensor([prompt])).logits[0]
            torch.testing.assert_close(logits(model, activated("late", start, prompt)), expected, atol=1e-4, rtol=1e-4)


def common(some: int | None, other: int | None, ours: Rig) -> int:
    """Return how many positions of the prompt are in whole blocks that two ways to compute it have in common."""
    first = min(len(PROMPT) - 1 if start is None else start for start in (some, other))
    return first - first % ours.storage.layout.block_size


def cells(ours: Rig, one: Sequence, end: int) -> list[bytes]:
    """Return the bytes of a sequence's whole blocks before a position."""
    return [ours.storage.bytes[block].tobytes() for block in one.blocks[: end // ours.storage.layout.block_size]]


@pytest.mark.parametrize(
    ("name", "by_kernels"), by_default({("llama", True), ("llama", False), ("deepseek_v3", True)}, PAIRS)
)
def test_the_model_and_its_adapters_share_what_is_before_the_start(
    name: str, by_kernels: bool, tmp_path: Path, library: KernelLibrary
) -> None:  # C16
    model = adapted_model(tmp_path, name, library if by_kernels else None)
    kinds = {"plain": None, "late": START, "later": 66, "whole": 0}
    alone = {kind: drain_one(rig(model), activated(kind, start)).output for kind, start in kinds.items()}
    assert len(set(map(tuple, alone.values()))) == 4
    pairs = ("plain", "late"), ("late", "plain"), ("later", "late"), ("late", "later"), ("plain", "whole")
    for first, second in pairs:
        ours = rig(model, budget=23)
        shared = common(kinds[first], kinds[second], ours)
        made = [drain_one(ours, activated(kind, kinds[kind])) for kind in (first, second)]
        assert [one.output for one in made] == [alone[first], alone[second]], (first, second)
        assert [one.history.cached for one in made] == [0, shared], (first, second)
        again = drain_one(ours, activated(second, kinds[second]))
        assert again.output == alone[second] and again.history.cached >= shared


def test_rows_before_the_start_have_the_models_own_bytes(tmp_path: Path, library: KernelLibrary) -> None:
    model = adapted_model(tmp_path, "llama", library)

    def kept(start: int | None, budget: int) -> list[bytes]:
        ours, one = rig(model, budget=budget), activated("one", start)
        ours.engine.add(one)
        while one.computed < len(PROMPT):
            ours.engine.step()
        return cells(ours, one, len(PROMPT))

    plain = kept(None, 256)
    for budget in (9, 16, 256):
        found = kept(START, budget)
        assert [here == there for here, there in zip(found, plain, strict=True)] == [True, True, False, False], budget
        assert found == kept(START, 256)


def test_guesses_of_a_draft_change_no_token(tmp_path: Path, library: KernelLibrary) -> None:
    model = adapted_model(tmp_path, "llama", library)
    repeated = PROMPT[:20] * 3
    for start in (25, 59):
        plain = drain_one(rig(model), activated("one", start, repeated)).output
        assert drain_one(rig(model, drafts=3), activated("one", start, repeated)).output == plain


def test_a_span_over_the_start_has_rows_of_both_kinds() -> None:
    def numbers(*spans: TileSpan) -> list[int]:
        return adapters_of_rows(spans).tolist()

    blocks = range(4)
    assert numbers(TileSpan(10, 3, blocks, 2, 0, 12), TileSpan(4, 1, blocks)) == [NO_ADAPTER, NO_ADAPTER, 2, NO_ADAPTER]
    assert numbers(TileSpan(12, 2, blocks, 0, 1, 12), TileSpan(3, 1, blocks, 1, 0, 9)) == [0, 0, NO_ADAPTER]
    assert numbers(TileSpan(3, 4, blocks, 1, 0, 7)) == [] and numbers(TileSpan(0, 1, blocks, 1)) == [1]


def test_what_is_wholly_before_a_start_is_beside_rows_without_an_adapter() -> None:
    spans = (Span(activated("a", 0), 5, 2), Span(activated("b", 30), 0, 30), Span(activated("c", 30), 0, 31))
    (tile,) = Batch(spans).mixed_tiles()
    assert [span.sequence.id for span in tile.spans] == ["b", "a", "c"]


def adapted_model(path: Path, name: str, library: KernelLibrary | None) -> Model:
    hugging_model(name, ROUND_SIZES).save_pretrained(path)
    model = read_model(path, torch.bfloat16, kernels=library)
    model.adapters.made(random_layers(model, 1)).put(0)
    return model


def drain_one(ours: Rig, one: Sequence) -> Sequence:
    ours.engine.add(one)
    drain(ours.engine)
    return one
