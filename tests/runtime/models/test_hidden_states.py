# SPDX-License-Identifier: Apache-2.0
"""States out of a forward pass, and embeddings into it, by torch's operations and by the kernels."""

from collections.abc import Iterator
from dataclasses import dataclass

import kernels
import pytest
import torch
from architectures import ROUND_SIZES, VOCAB, hugging_model, read_model
from effort import by_default
from tiny import Rig, rig, sequence
from torch import Tensor
from transformers import PreTrainedModel

from pontil.gpu_ops.kernels.tile import KernelTile
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.models.hidden_states import HiddenStates
from pontil.runtime.models.model import Model

PROMPT = torch.randint(0, VOCAB, (90,), generator=torch.Generator().manual_seed(3)).tolist()
CUTS = ([90], [1, 89], [64, 1, 15, 10])


@dataclass(frozen=True)
class StatedPair:
    hugging: PreTrainedModel
    ours: Model


@pytest.fixture(
    scope="module", params=[(name, kind) for name in ("llama", "qwen3_moe", "gemma3_text") for kind in ("torch", "own")]
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StatedPair]:
    name, kind = request.param
    library = kernels.opened() if kind == "own" else None
    path = tmp_path_factory.mktemp(name)
    hugging = hugging_model(name, ROUND_SIZES)
    hugging.save_pretrained(path)
    yield StatedPair(hugging, read_model(path, kernels=library))


def passed(ours: Rig, plan: TilePlan, states: HiddenStates | None, embedded: bool) -> Tensor:
    """Compute a tile of prompt positions from token ids or their embeddings; return the last layer's results."""
    model, tiles = ours.runner.model, ours.runner.tiles
    ids = tiles.tensor(plan.ids)
    inputs = model.embed(ids) if embedded else ids
    kept = inputs.clone()
    if model.kernels is not None:
        tile = KernelTile(ours.storage.tensor, plan.spans, model.dtype)
        done = model.forward_fused(inputs, tile, plan.rows, states)
    else:
        assert tiles.padded(plan) >= len(ids)
        padding = tiles.padded(plan) - len(ids)
        places = tiles.tensor([*plan.positions, *[0] * padding])
        padded = torch.cat([inputs, inputs.new_zeros(padding, *inputs.shape[1:])])
        done = model.forward(padded, places, tiles.attention(plan, plan.positions), states)[: len(ids)]
    assert torch.equal(inputs, kept)
    return done


def computed(model: Model, cuts: list[int], layers: int | None, embedded: bool = False) -> list[Tensor]:
    """The last layer's results of the whole prompt, and its states, if those after some layers are wanted."""
    ours, found = rig(model), []
    one = sequence("a", PROMPT)
    ours.scheduler.add(one)
    ours.scheduler.admit()
    start = 0
    for count in cuts:
        ours.scheduler.memory.grow(one, start + count)
        batch = Batch((Span(one, start, count),))
        for tile in batch.tiles() if model.kernels is None else batch.mixed_tiles():
            states = None if layers is None else HiddenStates(layers)
            done = passed(ours, plan_of(tile, [*range(tile.rows)], [], []), states, embedded)
            if states is None:
                found.append([done])
                continue
            assert states.embedding is not None and states.hidden is not None
            found.append([done, states.embedding[: tile.rows], states.hidden[: tile.rows]])
        start += count
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("layers", by_default({0, 2}, [0, 1, 2]))
def test_states_are_those_of_transformers_in_any_cutting(pair: StatedPair, layers: int) -> None:
    with torch.inference_mode():
        expected = pair.hugging(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
        whole = computed(pair.ours, CUTS[0], layers)
        torch.testing.assert_close(whole[1], expected[0][0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(whole[2], expected[layers][0], atol=5e-4, rtol=1e-4)
        for cuts in CUTS[1:]:
            assert same(computed(pair.ours, cuts, layers), whole)
        assert same(computed(pair.ours, CUTS[0], None), whole[:1])


def test_embeddings_in_place_of_token_ids_change_nothing(pair: StatedPair) -> None:
    with torch.inference_mode():
        for cuts in CUTS:
            assert same(computed(pair.ours, cuts, 2, embedded=True), computed(pair.ours, cuts, 2))
