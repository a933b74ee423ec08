# SPDX-License-Identifier: Apache-2.0
"""gather_columns, choose_rows and all_to_all over shared memory of any size, and over torch.distributed."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kernels
import pytest
import rank_calls
import torch
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_processes import RankProcesses
from torch import Tensor

from pontil.gpu_ops.collectives.communicator import CollectiveError, Communicator, SingleRank
from pontil.gpu_ops.collectives.factory import create_communicator, open_communicator
from pontil.gpu_ops.collectives.shared_memory import SharedMemoryCommunicator
from pontil.gpu_ops.collectives.torch_distributed import TorchCommunicator
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.rank_group import HEADER_BYTES

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.float8_e4m3fn, torch.float64)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def libraries() -> Iterator[list[KernelLibrary]]:
    four = [kernels.opened() for _ in range(4)]
    yield four
    for one in four:
        one.close()


def random(dtype: torch.dtype, rows: int, columns: int, seed: int) -> Tensor:
    numbers = torch.randint(-100, 100, (rows, columns), generator=torch.Generator().manual_seed(seed))
    return (numbers > 0) if dtype == torch.bool else numbers.to(torch.float32).to(dtype)


def equal(one: Tensor, other: Tensor) -> bool:
    same = one.dtype == other.dtype and one.shape == other.shape
    return same and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def chosen(parts: list[Tensor], owner: Tensor) -> Tensor:
    return torch.stack([parts[rank][row] for row, rank in enumerate(owner.tolist())]) if len(owner) else parts[0]


def dealt(given: list[Tensor], counts: list[list[int]], rank: int) -> Tensor:
    """The rows that come to a rank of all that each gives."""
    return torch.cat([rows.split(own)[rank] for rows, own in zip(given, counts, strict=True)])


def at_once(ranks: int, work: Callable[[int], Any]) -> list[Any]:
    """Run the work of every rank in a thread of its own."""
    results: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        results[rank] = work(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@settings(deadline=None, max_examples=examples(20, 60))
@given(data=st.data())
def test_any_tensors_through_memory_of_any_size(libraries: list[KernelLibrary], data: st.DataObject) -> None:
    """Calls follow each other without a barrier between; what does not fit goes in pieces."""
    ranks, dtype = data.draw(st.integers(1, 4)), data.draw(st.sampled_from(DTYPES))
    size = HEADER_BYTES + 2 * 64 * data.draw(st.integers(ranks, 40))
    shapes = data.draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 70)), min_size=1, max_size=5))
    calls = []
    for number, (rows, columns) in enumerate(shapes):
        parts = [random(dtype, rows, columns, 10 * number + rank) for rank in range(ranks)]
        owner = torch.tensor(data.draw(st.lists(st.integers(0, ranks - 1), min_size=rows, max_size=rows)))
        drawn = data.draw(st.lists(st.integers(0, 4), min_size=ranks * ranks, max_size=ranks * ranks))
        counts = [drawn[ranks * rank :][:ranks] for rank in range(ranks)]
        given = [random(dtype, sum(own), columns, 10 * number + rank) for rank, own in enumerate(counts)]
        calls.append((parts, owner.long(), given, counts))
    first = SharedMemoryCommunicator.create(libraries[0], ranks, size)
    others = [SharedMemoryCommunicator.open(libraries[r], first.descriptor, r) for r in range(1, ranks)]

    def work(rank: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        own = [first, *others][rank]
        return [
            (own.gather_columns(parts[rank]), own.choose_rows(parts[rank], owner), own.all_to_all(given[rank], counts))
            for parts, owner, given, counts in calls
        ]

    try:
        for rank, results in enumerate(at_once(ranks, work)):
            for (parts, owner, given, counts), (gathered, picked, taken) in zip(calls, results, strict=True):
                assert equal(gathered, torch.cat(parts, dim=1))
                assert equal(picked, chosen(parts, owner))
                assert equal(taken, dealt(given, counts, rank))
    finally:
        for one in (first, *others):
            one.close()


def test_a_view_and_a_tensor_larger_than_the_memory(processes: RankProcesses) -> None:
    """Logits, say: 32 rows of a large vocabulary."""
    processes.share(2, 256 << 10)
    parts = [torch.randn(3000, 64).T for _ in range(2)]
    owner = torch.arange(64) % 2
    for answer in processes.call([0, 1], rank_calls.gather, parts):
        assert equal(answer, torch.cat(parts, dim=1))
    for answer in processes.call([0, 1], rank_calls.choose, parts, owner):
        assert equal(answer, chosen(parts, owner))
    numbers = [torch.arange(900) + rank for rank in range(2)]
    assert all(equal(one, numbers[0]) for one in processes.call([0, 1], rank_calls.broadcast, numbers))


def test_torch_exchanges_the_same(processes: RankProcesses, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/ranks"
    (descriptor,) = processes.call([0], rank_calls.create_over_torch, 2, store, 60.0)
    assert processes.call([1], rank_calls.join_over_torch, descriptor, 1) == [None]
    assert processes.call([0, 1], rank_calls.barrier) == ["met"] * 2
    for dtype in DTYPES:
        parts = [random(dtype, 5, 7, seed) for seed in range(2)]
        owner = torch.tensor([1, 0, 0, 1, 1])
        for answer in processes.call([0, 1], rank_calls.gather, parts):
            assert equal(answer, torch.cat(parts, dim=1))
        for answer in processes.call([0, 1], rank_calls.choose, parts, owner):
            assert equal(answer, chosen(parts, owner))
        for counts in ([[1, 4], [0, 2]], [[3, 3], [3, 3]], [[0, 5], [0, 0]], [[0, 0], [0, 0]]):
            given = [random(dtype, sum(own), 7, seed) for seed, own in enumerate(counts)]
            for rank, answer in enumerate(processes.call([0, 1], rank_calls.all_to_all, given, counts)):
                assert equal(answer, dealt(given, counts, rank))
    numbers = [torch.arange(9) + rank for rank in range(2)]
    assert all(equal(one, numbers[0]) for one in processes.call([0, 1], rank_calls.broadcast, numbers))
    empty = [torch.zeros(0, 3)] * 2
    assert [answer.shape for answer in processes.call([0, 1], rank_calls.gather, empty)] == [(0, 6)] * 2
    processes.call([0, 1], rank_calls.leave)


def test_ranks_meet_at_a_port_of_rank_0_and_again_later(processes: RankProcesses) -> None:
    """The way in which ranks on several hosts do. Nothing listens at other addresses of rank 0."""
    (descriptor,) = processes.call([0], rank_calls.create_over_torch, 2, "tcp://127.0.0.1:0", 60.0)
    port = int(descriptor["store"].rpartition(":")[2])
    assert processes.call([1], rank_calls.join_over_torch, descriptor, 1) == [None]
    assert processes.call([0, 1], rank_calls.meet) == [None] * 2
    socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))
    assert processes.call([0, 1], rank_calls.barrier) == ["met"] * 2
    assert processes.call([0, 1], rank_calls.meet) == [None] * 2
    numbers = [torch.arange(9) + rank for rank in range(2)]
    assert all(equal(one, numbers[0]) for one in processes.call([0, 1], rank_calls.broadcast, numbers))
    processes.call([0, 1], rank_calls.leave)


def test_a_rank_whose_driver_is_not_at_its_port_gives_up(processes: RankProcesses) -> None:
    (descriptor,) = processes.call([0], rank_calls.create_over_torch, 2, "tcp://127.0.0.1:0", 1.0)
    processes.call([1], rank_calls.join_over_torch, descriptor, 1)
    (answer,) = processes.call([1], rank_calls.meet)
    assert answer.startswith("CollectiveError: the ranks of this worker did not meet within 1 s")
    for rank in range(2):
        processes.kill(rank)


def test_a_port_that_another_has_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        store = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(CollectiveError, match="ranks cannot meet at tcp://.*in use"):
            create_communicator(None, CPU, 2, 0, store)


def test_torch_does_not_wait_for_ever(processes: RankProcesses, tmp_path: Path) -> None:
    """A rank that never comes, and one that dies."""
    store = f"file://{tmp_path}/ranks"
    processes.call([0], rank_calls.create_over_torch, 2, store, 1.0)
    first, second = (processes.call([0], rank_calls.barrier)[0] for _ in range(2))
    assert "did not meet within 1 s" in first and second == first
    # A worker that failed starts anew.
    for rank in range(2):
        processes.kill(rank)
    processes.revive()
    (descriptor,) = processes.call([0], rank_calls.create_over_torch, 2, store, 30.0)
    processes.call([1], rank_calls.join_over_torch, descriptor, 1)
    assert processes.call([0, 1], rank_calls.barrier) == ["met"] * 2
    processes.kill(1)
    (answer,) = processes.call([0], rank_calls.barrier)
    assert answer.startswith("CollectiveError: the ranks of this worker did not meet")
    processes.call([0], rank_calls.leave)


def test_the_factory_chooses(libraries: list[KernelLibrary], tmp_path: Path) -> None:
    store = f"file://{tmp_path}/ranks"
    assert isinstance(create_communicator(libraries[0], CPU, 1, 1 << 20, store), SingleRank)
    torch_one = create_communicator(None, CPU, 2, 1 << 20, store)
    shared = create_communicator(libraries[0], CPU, 2, 1 << 20, store)
    assert isinstance(torch_one, TorchCommunicator) and isinstance(shared, SharedMemoryCommunicator)
    second = open_communicator(libraries[1], CPU, shared.descriptor, 1)
    assert (second.rank, second.size) == (1, 2)
    second.close()
    shared.close()
    assert isinstance(open_communicator(None, CPU, torch_one.descriptor, 1), TorchCommunicator)
    with pytest.raises(CollectiveError, match="same kernels"):
        open_communicator(None, CPU, shared.descriptor, 1)
    for wrong in ({"store": "redis://x"}, {"store": 5}, {"ranks": "2"}, {"ranks": 1}):
        with pytest.raises(CollectiveError):
            open_communicator(None, CPU, torch_one.descriptor | wrong, 1)


def test_one_rank_alone() -> None:
    alone: Communicator = SingleRank()
    x = torch.randn(3, 4)
    alone.barrier()
    assert alone.gather_columns(x) is x and alone.choose_rows(x, torch.zeros(3).long()) is x and not alone.descriptor
    assert alone.all_to_all(x, [[3]]) is x
    alone.close()
