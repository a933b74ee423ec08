# SPDX-License-Identifier: Apache-2.0
"""Adapters of the projections of recurrent layers, which are one product whose outputs are in another order."""

import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import kernels
import pytest
import torch
from architectures import HYBRIDS, ROUND_SIZES, VOCAB, hugging_model, read_model
from drafted import Oracle
from effort import by_default
from safetensors.torch import save_file
from tiny import Rig, check_free, drain, rig, sequence
from tiny_adapters import logits_of, merge, random_layers, with_adapter, write_adapter

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.parameters.adapters import LowRank
from pontil.runtime.cache.prefix import STATE_TOKENS
from pontil.runtime.engine.sequences.sequence import Sequence as EngineSequence
from pontil.runtime.errors import AdapterError
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.facts.adapter_facts import check_adapter
from pontil.runtime.loaders.hf.adapter import read_adapter
from pontil.runtime.models.adapter_places import AdapterPlaces, runs
from pontil.runtime.models.model import Model
from pontil.runtime.models.partition import Partition

TEXT = torch.randint(0, VOCAB, (600,), generator=torch.Generator().manual_seed(5)).tolist()
LAYERS = (("first", 48), ("second", 5), ("third", 11), ("fourth", 16))


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    return kernels.opened()


def hybrid(path: Path, name: str, library: KernelLibrary | None, dtype: torch.dtype = torch.bfloat16) -> Model:
    hugging_model(name, ROUND_SIZES).save_pretrained(path)
    return read_model(path, dtype, kernels=library)


@pytest.mark.parametrize(
    ("name", "by_kernels"), by_default({(HYBRIDS[0], True), (HYBRIDS[1], True)}, product(HYBRIDS, (False, True)))
)
def test_each_projection_is_adapted_as_it_is_merged(
    name: str, by_kernels: bool, tmp_path: Path, library: KernelLibrary
) -> None:
    """One after the other, so that none is taken for another one."""
    hugging = hugging_model(name, ROUND_SIZES)
    hugging.save_pretrained(tmp_path)
    model = read_model(tmp_path, torch.float32, kernels=library if by_kernels else None)
    mixers = [own for own in model.adapters.shapes if ".linear_attn." in own or ".mamba." in own]
    assert {own.rpartition(".")[2].partition("_")[0] for own in mixers} == {"in", "out"}
    with torch.inference_mode():
        plain = logits_of(model, -1, TEXT[:40])
        for own in mixers[: len(mixers) // 2]:
            outputs, inputs = model.adapters.shapes[own]
            layers = {own: LowRank(torch.randn(5, inputs) * inputs**-0.5, torch.randn(outputs, 5) * 0.5)}
            model.adapters.made(layers).put(0)
            merge(hugging, layers)
            expected, found = hugging(torch.tensor([TEXT[:40]])).logits[0], logits_of(model, 0, TEXT[:40])
            torch.testing.assert_close(found, expected, atol=1e-4 * float(expected.abs().max()), rtol=1e-4)
            assert (expected - plain).abs().max() > 1e-3, own
            merge(hugging, layers, -1.0)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_outputs_of_any_order_have_the_rows_of_their_layers(packed: bool, rank: int) -> None:
    """Also where layers share a panel of the kernels, some of which have no adapter."""
    generator = torch.Generator().manual_seed(rank)
    whole = [(20 + 3 * number) % 48 for number in range(48)]
    rest = [48 + number for number in torch.randperm(32, generator=generator).tolist()]
    order = [whole[:32] + rest[:21] + whole[32:], whole[16:] + rest[4:28] + rest[28:]][rank]
    places = AdapterPlaces(Partition(), torch.device("cpu"), torch.float32, packed, on_devices=True)
    made = places.ordered(32, LAYERS, order)
    assert made is not None and sum(len(part.rows) for part in made.parts) == len(order)
    if packed:
        assert all(len(part.rows) % 16 == 0 for part in made.parts[:-1])
    for left in (None, *range(4)):
        layers = {
            name: LowRank(torch.randn(3 + place, 32), torch.randn(size, 3 + place))
            for place, (name, size) in enumerate(LAYERS)
            if place != left
        }
        stacked = torch.cat(
            [layers[name].up @ layers[name].down if name in layers else torch.zeros(size, 32) for name, size in LAYERS]
        )
        found = [(part.made(layers, made.own), len(part.rows)) for part in made.parts]
        changes = [torch.zeros(size, 32) if one is None else one.up @ one.down for one, size in found]
        torch.testing.assert_close(torch.cat(changes), stacked[order])
    assert made.parts[0].made({}, made.own) is None


def test_runs_end_where_a_panel_does() -> None:
    assert list(runs([0] * 4 + [1] * 2 + [0] * 3, 1)) == [(0, 4), (4, 6), (6, 9)]
    assert list(runs([0] * 4 + [1] * 2 + [0] * 3, 4)) == [(0, 4), (4, 9)]
    assert list(runs([0] * 3 + [1] * 5 + [2] * 4, 4)) == [(0, 8), (8, 12)]
    assert list(runs([2, 2], 16)) == [(0, 2)]


@pytest.mark.long
@pytest.mark.parametrize(("name", "tokens"), [*((name, 0) for name in HYBRIDS), ("qwen3_5_text", 3)])
def test_all_linear_layers_that_peft_saves_are_computed_as_peft_does(
    name: str, tokens: int, tmp_path: Path, library: KernelLibrary
) -> None:
    """Also from the tokens on that activate them."""
    peft: Any = pytest.importorskip("peft")
    prompt = TEXT[:70]
    hugging = hugging_model(name, ROUND_SIZES)
    hugging.save_pretrained(tmp_path)
    config = peft.LoraConfig(
        r=5, lora_alpha=7, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM",
        alora_invocation_tokens=prompt[37 : 37 + tokens] if tokens else None,
    )  # fmt: skip
    tuned = peft.get_peft_model(hugging, config)
    tuned.save_pretrained(tmp_path / "adapter")
    check_adapter(tmp_path / "adapter", read_config(tmp_path), "a test")
    with torch.inference_mode():
        expected = tuned(input_ids=torch.tensor([prompt])).logits[0]
    for by_kernels in (False, True):
        model = read_model(tmp_path, torch.float32, kernels=library if by_kernels else None)
        read = read_adapter(tmp_path / "adapter")
        model.adapters.made(read.own(model.adapters.shapes, "a test", model.adapters.config)).put(0)
        with torch.inference_mode():
            found = logits_of(model, 0, prompt, 37 if tokens else 0)
        torch.testing.assert_close(found, expected, atol=1e-4 * float(expected.abs().max()), rtol=1e-4)
    if not tokens:
        with torch.inference_mode():
            merged = tuned.merge_and_unload()(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(found, merged, atol=1e-4 * float(merged.abs().max()), rtol=1e-4)


def asked(number: int, count: int = 12, length: int = 600, **params: object) -> EngineSequence:
    return with_adapter(sequence(str(number), TEXT[:length], count, **params), number)


def of_projections_alone(model: Model, seed: int) -> dict[str, LowRank]:
    return {name: one for name, one in random_layers(model, seed).items() if ".in_proj" in name}


def test_states_of_an_adapter_are_found_by_it_alone(tmp_path: Path, library: KernelLibrary) -> None:
    """Those of whole blocks, and those of the ends of prompts and answers."""
    model = hybrid(tmp_path, "qwen3_5_text", library)
    for number in range(2):
        model.adapters.made(of_projections_alone(model, number + 1)).put(number)
    ours = rig(model)
    alone = {number: drain(engine_of(model, asked(number)).engine)[str(number)] for number in (-1, 0, 1)}
    assert len(set(map(tuple, alone.values()))) == 3
    found = dict[int, list[int]]()
    for number in (-1, 0, 1, 0, -1, 1):
        one = asked(number)
        ours.engine.add(one)
        assert drain(ours.engine)[str(number)] == alone[number]
        found.setdefault(number, []).append(one.history.cached)
    assert found == {number: [0, 2 * STATE_TOKENS] for number in (-1, 0, 1)}
    turn = with_adapter(sequence("turn", [*TEXT, *alone[0], 5], 4), 0)
    other = with_adapter(sequence("other", [*TEXT, *alone[0], 5], 4), 1)
    for one in (turn, other):
        ours.engine.add(one)
        drain(ours.engine)
    assert (turn.history.cached, other.history.cached) == (600 + 11, 600)
    check_free(ours)


def engine_of(model: Model, *sequences: EngineSequence, **options: Any) -> Rig:
    ours = rig(model, caching=False, **options)
    for one in sequences:
        ours.engine.add(one)
    return ours


@pytest.mark.parametrize("name", by_default({"qwen3_5_text"}, HYBRIDS))
def test_states_have_the_same_bytes_for_any_chunks(name: str, tmp_path: Path, library: KernelLibrary) -> None:  # C16
    """And from the position on that activates an adapter, with another one beside it."""
    model = hybrid(tmp_path, name, library)
    for number in range(2):
        model.adapters.made(random_layers(model, number + 1)).put(number)

    def states(budget: int, *, beside: bool) -> tuple[list[int], list[bytes]]:
        late = with_adapter(sequence("late", TEXT[:300], 12, temperature=1.1), 0, 259)
        ours = engine_of(model, late, *([asked(1, 20, 90)] if beside else []), budget=budget)
        found = list[bytes]()
        while ours.engine.has_work:
            ours.engine.step()
            if late.computed >= 305 and not found:
                assert ours.storage.states is not None and late.computed == 305
                found = [ours.storage.states[block].numpy().tobytes() for block in late.blocks]
        return list(late.output), found

    usual = states(256, beside=False)
    for budget in (37, 100, 512):
        assert states(budget, beside=True) == usual, budget


def test_guesses_leave_the_states_of_none(tmp_path: Path, library: KernelLibrary) -> None:
    model = hybrid(tmp_path, "qwen3_5_text", library)
    model.adapters.made(random_layers(model, 1)).put(0)
    plain = drain(engine_of(model, asked(0, 24, 250)).engine)["0"]
    ours = engine_of(model, asked(0, 24, 250), drafts=4, drafter=Oracle(random.Random(1), lambda one: plain))
    assert drain(ours.engine)["0"] == plain and 0 < ours.engine.accepted < ours.engine.drafted


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"conv1d": ((4, 224, 4), (224, 4, 1))}, "adapts .*linear_attn.conv1d, which is no linear layer"),
        ({"conv1d": ((4, 4), (224, 4))}, "adapts .*linear_attn.conv1d, which this model does not have, or"),
        ({"A_log": ((4, 1), (4, 4))}, "adapts .*linear_attn.A_log, which this model does not have, or"),
        ({"in_proj_z": ((4, 96), (64, 4))}, "in_proj_z has 96 inputs and 64 outputs there, and 96 and 128 here"),
        ({"in_proj_qkvz": ((4, 96), (320, 4))}, "in_proj_qkvz, which this model does not have"),
    ],
)  # fmt: skip
def test_what_is_no_projection_is_refused(
    shapes: dict[str, Sequence[Sequence[int]]], says: str, tmp_path: Path
) -> None:
    hugging_model("qwen3_5_text", ROUND_SIZES).save_pretrained(tmp_path)
    directory = write_adapter(tmp_path / "adapter", {}, target_modules=list(shapes))
    save_file(
        {
            f"base_model.model.model.layers.0.linear_attn.{name}.lora_{letter}.weight": torch.ones(*shape)
            for name, both in shapes.items()
            for letter, shape in zip("AB", both, strict=True)
        },
        directory / "adapter_model.safetensors",
    )
    with pytest.raises(AdapterError, match=says):
        check_adapter(directory, read_config(tmp_path), "adapter x")
