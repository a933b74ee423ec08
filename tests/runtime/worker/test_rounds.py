# SPDX-License-Identifier: Apache-2.0
"""Rounds of workers that share experts: who comes, who is called, and how they end together."""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_turns import RankTurns, TurnCommunicator, TurnMeetings

from pontil.gpu_ops.collectives.communicator import SingleRank
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.errors import GroupLeaves
from pontil.runtime.reporting import Reporter
from pontil.runtime.wire.links.sockets import PeerClient, Poller
from pontil.runtime.wire.messages import RankRound
from pontil.runtime.worker.ranks import driver, rank_client
from pontil.runtime.worker.ranks.round_links import FirstRankLink, OtherRankLink, RoundLink
from pontil.runtime.worker.ranks.rounds import ExpertRounds, Rounds

RANKS = 3
QUIET = cast(Reporter, SimpleNamespace(progress=lambda text: None))


class TurnGroup:
    """Ranks that take turns. `passes` are those in which each computed, its own rows or others'; `calls` are the rounds
    to which one of them had to call."""

    def __init__(self) -> None:
        self.turns = RankTurns()
        self.meetings = TurnMeetings(self.turns, RANKS)
        self.boxes: list[list[int]] = [[] for _ in range(RANKS)]
        self.passes: list[list[int]] = [[] for _ in range(RANKS)]
        self.calls: set[int] = set()
        self.rounds = [self.joined(rank) for rank in range(RANKS)]
        self.busy = set(range(RANKS))

    def joined(self, rank: int) -> ExpertRounds:
        def call(number: int) -> None:
            self.calls.add(number)
            for box in (box for other, box in enumerate(self.boxes) if other != rank):
                box.append(number)

        def called() -> list[int]:
            found, self.boxes[rank] = self.boxes[rank], []
            return found

        made = ExpertRounds(cast(RoundLink, SimpleNamespace(call=call, called=called, agree=lambda *_: None)))
        made.communicator = TurnCommunicator(self.meetings, rank)
        made.agree(("m", "k", "avx2"), 1, lambda: self.passes[rank].append(made.number))
        return made

    def turn(self, rank: int, rows: int) -> None:
        """Make a turn of a worker's loop, with a step of so many rows if there are any."""
        rounds = self.rounds[rank]
        rounds.hear()
        if rows:
            rounds.run(TilePlan(False, [3] * rows, [], [], [], []))
            self.passes[rank].append(rounds.number)
        rounds.keep_up()

    def live(self, rank: int, steps: list[int]) -> None:
        """Make these turns, then as many as the others want."""
        for rows in steps:
            self.turn(rank, rows)
        self.busy.discard(rank)
        while self.turns.wait(lambda: bool(self.boxes[rank]) or self.rounds[rank].are_due):
            self.turn(rank, 0)

    def run(self, *lives: Callable[[], None]) -> None:
        self.turns.run(lives)


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=RANKS, max_size=RANKS))
def test_all_ranks_make_the_same_passes_and_rest_after_them(steps: list[list[int]]) -> None:
    group = TurnGroup()
    group.run(*(lambda rank=rank: group.live(rank, steps[rank]) for rank in range(RANKS)))
    assert group.passes[0] == group.passes[1] == group.passes[2]
    assert len({rounds.number for rounds in group.rounds}) == 1
    assert not any(rounds.are_due for rounds in group.rounds)
    most = max(sum(map(bool, own)) for own in steps)
    assert most <= len(group.passes[0]) <= sum(sum(map(bool, own)) for own in steps)
    # A round without rows ends each time of work, and only the first of one has to be called to.
    assert group.rounds[0].number - len(group.passes[0]) == len(group.calls)


def test_nobody_is_called_between_the_rounds_of_a_busy_rank() -> None:
    group = TurnGroup()
    group.run(*(lambda rank=rank: group.live(rank, [4] * 5 if rank == 1 else []) for rank in range(RANKS)))
    assert group.calls == {1} and group.passes == [[1, 2, 3, 4, 5]] * RANKS and group.rounds[0].number == 6


@pytest.mark.parametrize("steps", [[], [1, 1, 1]])
def test_a_rank_that_leaves_takes_the_others_with_it(steps: list[int]) -> None:
    """The others may rest or compute."""
    group, left = TurnGroup(), list[int]()

    def live(rank: int) -> None:
        try:
            group.live(rank, steps)
        except GroupLeaves:
            left.append(rank)
        group.rounds[rank].leave()

    group.run(lambda: group.rounds[0].leave(), lambda: live(1), lambda: live(2))
    assert sorted(left) == [1, 2] and not any(rounds.are_due for rounds in group.rounds)


def test_a_worker_that_shares_nothing_makes_no_rounds() -> None:
    rounds = Rounds()
    rounds.keep_up()
    rounds.leave()
    assert not rounds.are_due


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], RoundLink]]:
    """Return a function that opens the link of a rank, in the thread that uses it."""
    monkeypatch.setattr(driver, "create_communicator", lambda *_: SingleRank())
    monkeypatch.setattr(driver, "shared_bytes", lambda *_: 0)
    monkeypatch.setattr(rank_client, "open_communicator", lambda *_: SingleRank())
    config = WorkerConfig(
        "decode:0", "decode", "cpu", (0,), "m", "m", "ipc:///c", "ipc:///p", rank_endpoint=f"ipc://{tmp_path}/ranks",
        data_parallel_size=RANKS,
    )  # fmt: skip
    yield lambda rank: OtherRankLink(config, (rank, RANKS)) if rank else FirstRankLink(config, QUIET, RANKS)


def live_linked(link: RoundLink, calls: list[int], end: Barrier) -> list[int]:
    """Start together, call to these rounds, and return the numbers of rounds heard, until there is one of 9."""
    poller, heard = Poller(), list[int]()
    link.join(cast(Any, None), None, cast(Any, None))
    try:
        link.agree(("m", "k", "avx2"), 1)
        # A step that warms up is a round.
        link.call(1)
        link.meet()
        link.watch(poller)
        for number in calls:
            link.call(number)
        # Some may have come with the last message that was waited for: a worker looks before it sleeps.
        heard += link.called()
        while not calls and 9 not in heard:
            assert poller.wait(30.0), "nobody calls"
            heard += link.called()
        end.wait(60.0)
    finally:
        link.close()
        poller.close()
    return [number for number in heard if number != 1]


def test_a_call_reaches_all_ranks_over_the_first_one(links: Callable[[int], RoundLink]) -> None:
    found, end = dict[int, list[int]](), Barrier(RANKS)

    def live(rank: int) -> None:
        found[rank] = live_linked(links(rank), [8, 9] if rank == 1 else [], end)

    threads = [Thread(target=live, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert found == {0: [8, 9], 1: [], 2: [8, 9]}


def test_calls_that_arrive_together_are_all_heard(
    links: Callable[[int], RoundLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One from before, the word that all are there, and the first call after it."""
    link, arrived = links(1), [RankRound("d4", "", number) for number in (1, 0, 8)]
    monkeypatch.setattr(PeerClient, "receive_all", lambda socket: [arrived.pop(0) for _ in range(len(arrived))])
    monkeypatch.setattr(rank_client, "START_WITHIN", 0.1)
    link.meet()
    assert link.called() == [8] and not link.called()
    link.close()
