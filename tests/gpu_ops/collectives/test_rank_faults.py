# SPDX-License-Identifier: Apache-2.0
"""Ranks that end, halt, come late or do something else: the others notice within the deadline, and never go on."""

import os
import signal

import kernels
import pytest
import rank_calls
import torch
from divided_layer import DividedLayer
from open_resources import nothing_left_open
from rank_processes import RankProcesses

from pontil.gpu_ops.collectives.communicator import CollectiveError
from pontil.gpu_ops.collectives.shared_memory import SharedMemoryCommunicator
from pontil.gpu_ops.kernels.layer import HeadShape

SHORT = 1.5
LAYER = DividedLayer(shape=HeadShape(6, 6, 32), inner=192)


def test_the_death_of_a_rank_ends_a_call_and_all_later_ones(processes: RankProcesses) -> None:
    """The layer is left in the middle of a kernel."""
    processes.share(3)
    assert processes.call([0, 1, 2], rank_calls.barrier) == ["met"] * 3
    processes.send(0, rank_calls.compute, LAYER)
    processes.kill(1)
    ended = "CollectiveError: rank 1 has ended"
    assert processes.answer(0) == ended
    assert processes.call([2, 0], rank_calls.barrier) == [ended] * 2
    # The kernels' threads and memory are as usable as before.
    processes.share(1)
    assert isinstance(processes.call([0], rank_calls.compute, LAYER)[0], tuple)


def test_a_rank_that_ends_before_the_first_meeting_is_noticed(processes: RankProcesses) -> None:
    processes.share(2)
    processes.kill(1)
    assert processes.call([0], rank_calls.barrier) == ["CollectiveError: rank 1 has ended"]


def test_a_halted_rank_is_given_up_and_learns_of_it(processes: RankProcesses) -> None:
    processes.share(2, deadline=SHORT)
    assert processes.call([0, 1], rank_calls.barrier) == ["met"] * 2
    processes.signal(1, signal.SIGSTOP)
    late = f"CollectiveError: rank 1 did not arrive within {SHORT} s"
    assert processes.call([0], rank_calls.barrier) == [late]
    processes.signal(1, signal.SIGCONT)
    assert processes.call([1], rank_calls.compute, LAYER) == [late]


def test_a_rank_that_was_halted_itself_does_not_blame_those_who_came(processes: RankProcesses) -> None:
    """Rank 0 waits, is halted beyond its deadline, and finds rank 1 there when it goes on."""
    processes.share(2, deadline=60.0)
    processes.send(0, rank_calls.barrier)
    processes.signal(0, signal.SIGSTOP)
    processes.send(1, rank_calls.barrier)
    processes.signal(0, signal.SIGCONT)
    assert [processes.answer(rank) for rank in (0, 1)] == ["met"] * 2


def test_who_waits_for_long_sleeps(processes: RankProcesses) -> None:
    processes.share(2, deadline=1.5)
    (busy,) = processes.call([0], rank_calls.busy_for)
    assert busy < 0.75


def test_ranks_that_do_not_agree_are_told(processes: RankProcesses) -> None:
    """No rank takes another's bytes for those that it asked for."""
    processes.share(2)
    parts = [torch.zeros(2, 3), torch.zeros(2, 4)]
    for answer in processes.call([0, 1], rank_calls.gather, parts):
        assert answer.startswith("CollectiveError: rank ") and answer.endswith(" computes something else")


def test_more_ranks_than_cores(processes: RankProcesses) -> None:
    """All of them on one core: who waits leaves it to the others."""
    layer, cores = DividedLayer(hidden=192, inner=64), os.sched_getaffinity(0)
    alone = kernels.opened()
    expected, _ = layer.computed(alone)
    alone.close()
    processes.share(4)
    processes.call(range(4), rank_calls.pin, {min(cores)})
    try:
        assert processes.call(range(4), rank_calls.barrier, 300) == ["met"] * 4
        for rows, _ in processes.call(range(4), rank_calls.compute, layer):
            assert all(torch.equal(one, other) for one, other in zip(rows, expected, strict=True))
    finally:
        processes.call(range(4), rank_calls.pin, cores)


def test_a_rank_has_one_process(processes: RankProcesses) -> None:
    descriptor = processes.share(2)
    (answer,) = processes.call([2], rank_calls.join, descriptor, 1)
    assert "rank 1 of 2 cannot be taken" in answer
    (answer,) = processes.call([2], rank_calls.join, descriptor, 2)
    assert "is none of the others" in answer
    assert processes.call([0, 1], rank_calls.barrier) == ["met"] * 2


def test_a_group_that_is_gone_cannot_be_joined(processes: RankProcesses) -> None:
    descriptor = processes.share(1)
    processes.call([0], rank_calls.leave)
    (answer,) = processes.call([1], rank_calls.join, descriptor | {"ranks": 2}, 1)
    assert "cannot be opened" in answer


@pytest.mark.parametrize(
    "wrong",
    [
        {"pid": -1}, {"pid": "1"}, {"fd": 1 << 40}, {"fd": None}, {"identity": "zz"}, {"identity": "00" * 31},
        {"identity": 5}, {"ranks": 1000}, {"ranks": True}, {"ranks": 0}, {"bytes": -4096}, {"bytes": 1.5},
        {"deadline": float("nan")}, {"deadline": float("inf")}, {"deadline": 0}, {"deadline": "10"},
        {"bytes": 8192}, {"identity": "00" * 32},
    ],
    ids=str,
)  # fmt: skip
def test_a_descriptor_is_checked(wrong: dict[str, object]) -> None:
    library = kernels.opened()
    driver = SharedMemoryCommunicator.create(library, 2, 1 << 20)
    try:
        with pytest.raises(CollectiveError):
            SharedMemoryCommunicator.open(library, driver.descriptor | wrong, 1)
        for name in wrong:
            with pytest.raises(CollectiveError):
                SharedMemoryCommunicator.open(
                    library, {key: value for key, value in driver.descriptor.items() if key != name}, 1
                )
    finally:
        driver.close()
        library.close()


def test_memory_that_cannot_be_had_is_one_sentence() -> None:
    library = kernels.opened()
    with nothing_left_open(), pytest.raises(CollectiveError, match="for the ranks cannot be"):
        SharedMemoryCommunicator.create(library, 2, 1 << 62)
    with nothing_left_open(), pytest.raises(CollectiveError, match="memory is too small"):
        SharedMemoryCommunicator.create(library, 2, 4096)
    library.close()
