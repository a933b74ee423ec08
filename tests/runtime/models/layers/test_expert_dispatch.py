# SPDX-License-Identifier: Apache-2.0
"""Rows, or results, that ranks send each other: the sums of one process, bit for bit."""

from functools import partial

import pytest
import torch
from rank_turns import RankTurns, TurnCommunicator, TurnMeetings
from torch import Tensor

from pontil.gpu_ops.products.experts import add_by_ratings
from pontil.runtime.models.layers.expert_dispatch import ExpertDispatch

RANKS, HELD, PER_TOKEN, HIDDEN = 3, 2, 4, 8
FACTORS = torch.randn(RANKS * HELD, HIDDEN, generator=torch.Generator().manual_seed(1))


def results(x: Tensor, chosen: Tensor) -> Tensor:
    return (x.unsqueeze(1) * FACTORS[chosen]).flatten(0, 1)


def own_results(rank: int, x: Tensor, chosen: Tensor, rows: Tensor) -> Tensor:
    """Those of other ranks' experts are not set."""
    assert len(rows) == len(x)
    return results(x, chosen).masked_fill((chosen.view(-1, 1) // HELD) != rank, torch.nan)


@pytest.mark.parametrize("by_choices", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 32])
def test_sums_are_those_of_one_process(monkeypatch: pytest.MonkeyPatch, rows: int, by_choices: bool) -> None:
    """Fewer rows than ranks, equal shares, and shares that differ; on a CPU, and as on a device."""
    monkeypatch.setattr(ExpertDispatch, "may_depend_on_choices", lambda *_: by_choices)
    random = torch.Generator().manual_seed(rows)
    x, scores = (torch.randn(rows, size, generator=random) for size in (HIDDEN, RANKS * HELD))
    ratings, chosen = scores.topk(PER_TOKEN)
    turns = RankTurns()
    meetings = TurnMeetings(turns, RANKS)

    def live(rank: int) -> Tensor:
        dispatch = ExpertDispatch(TurnCommunicator(meetings, rank), HELD)
        return dispatch(x, ratings, chosen, partial(own_results, rank))

    alone = add_by_ratings(results(x, chosen).view(rows, PER_TOKEN, HIDDEN), ratings)
    for found in turns.run([partial(live, rank) for rank in range(RANKS)]):
        assert torch.equal(found, alone)


@pytest.mark.parametrize("counts", [(3, 0, 5), (0, 0, 1), (4, 4, 4), (0, 0, 0)])
def test_each_rank_gets_the_sums_of_its_own_rows(counts: tuple[int, ...]) -> None:
    """Ranks with different rows, or none, learn each other's choices and compute for each other."""
    random = torch.Generator().manual_seed(sum(counts))
    rows = [torch.randn(count, HIDDEN, generator=random) for count in counts]
    tops = [torch.randn(count, RANKS * HELD, generator=random).topk(PER_TOKEN) for count in counts]
    turns = RankTurns()
    meetings = TurnMeetings(turns, RANKS)

    def live(rank: int) -> Tensor:
        dispatch = ExpertDispatch(TurnCommunicator(meetings, rank), HELD, own_tiles=True)
        return dispatch(rows[rank], *tops[rank], partial(own_results, rank))

    for x, (ratings, chosen), found in zip(
        rows, tops, turns.run([partial(live, rank) for rank in range(3)]), strict=True
    ):
        alone = add_by_ratings(results(x, chosen).view(len(x), PER_TOKEN, HIDDEN), ratings)
        assert torch.equal(found, alone)
