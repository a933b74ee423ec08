# SPDX-License-Identifier: Apache-2.0
"""Sums through symmetric memory, of threads that stand for ranks: all use it, or none does."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any

import pytest
import torch
from rank_turns import RankTurns, TurnCommunicator, TurnMeetings
from torch import Tensor
from torch.distributed import _symmetric_memory

from pontil.gpu_ops.collectives.communicator import added
from pontil.gpu_ops.collectives.symmetric_memory import MOST_BYTES, SymmetricSums, open_symmetric
from pontil.gpu_ops.collectives.torch_distributed import KIND, TorchCommunicator
from pontil.gpu_ops.device_mark import DeviceLate

CPU = torch.device("cpu")


@dataclass
class FakeGroup:
    """A process group of one rank, whose name leads to its communicator."""

    group_name: str
    own: TurnCommunicator


@dataclass
class FakeSymmetric:
    """The functions of torch's symmetric memory, as their docstrings describe them; an op that adds what lies in the
    ranks' memory. `short` ranks have no memory left, `broken` ones cannot map that of others, and a `wrong` one misses
    a part. The op is started at once, and ends when all ranks have started it: `absent` ranks do not have it, and
    `failing` ones fail before it is started."""

    turns: RankTurns = field(default_factory=RankTurns)
    groups: dict[str, FakeGroup] = field(default_factory=dict)
    opened: dict[int, str] = field(default_factory=dict)
    short: frozenset[int] = frozenset()
    broken: frozenset[int] = frozenset()
    wrong: frozenset[int] = frozenset()
    absent: frozenset[int] = frozenset()
    failing: frozenset[int] = frozenset()
    # By the number of the op, each rank's part and the memory of its result.
    started: list[dict[int, tuple[Tensor, Tensor]]] = field(default_factory=list)

    def empty(self, *size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if self.turns.own.rank in self.short:
            raise torch.OutOfMemoryError("out of memory")
        return torch.zeros(*size, dtype=dtype, device=device)

    def rendezvous(self, tensor: Tensor, group: FakeGroup) -> object:
        """All ranks come together here, and those that fail do so behind it."""
        assert tensor.dtype == torch.uint8 and tensor.nbytes == MOST_BYTES
        group.own.exchange(tensor)
        if group.own.rank in self.broken:
            raise RuntimeError("the devices have no way to each other\nin detail")
        self.opened[tensor.untyped_storage().data_ptr()] = group.group_name
        return object()

    @property
    def one_shot_all_reduce(self) -> Callable[[Tensor, str, str], Tensor]:
        if self.turns.own.rank in self.absent:
            raise AttributeError("'_OpNamespace' 'symm_mem' object has no attribute 'one_shot_all_reduce'")
        return self.start

    def start(self, own: Tensor, reduce_op: str, group_name: str) -> Tensor:
        assert reduce_op == "sum" and own.is_contiguous() and own.nbytes % 16 == 0
        assert self.opened[own.untyped_storage().data_ptr()] == group_name, "not memory of this group"
        rank = self.groups[group_name].own.rank
        if rank in self.failing:
            raise RuntimeError("out of memory")
        number = sum(rank in one for one in self.started)
        self.started += [{}] * (number == len(self.started))
        self.started[number][rank] = own.clone(), torch.full_like(own, 77)
        return self.started[number][rank][1]

    def wait(self) -> None:
        """Wait for what the calling rank has started."""
        rank = self.turns.own.rank
        for ranks in [one for one in self.started if rank in one]:
            if not self.turns.wait(lambda: len(ranks) == len(self.groups)):  # noqa: B023
                raise DeviceLate(f"rank {rank} has waited long enough")
            parts = [ranks[other][0] for other in sorted(ranks) if other != rank or rank not in self.wrong]
            ranks[rank][1].copy_(added(torch.stack(parts)))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSymmetric]:
    made = FakeSymmetric()
    monkeypatch.setattr(torch.distributed, "_symmetric_memory", made)
    monkeypatch.setattr(torch.ops, "symm_mem", made)
    yield made


def test_torch_has_what_is_called_here() -> None:
    schema = torch.ops.symm_mem.one_shot_all_reduce.default._schema
    assert [one.name for one in schema.arguments] == ["input", "reduce_op", "group_name"]
    assert list(signature(_symmetric_memory.rendezvous).parameters) == ["tensor", "group"]
    assert {"dtype", "device"} < set(signature(_symmetric_memory.empty).parameters)


def opened(fake: FakeSymmetric, ranks: int) -> list[tuple[SymmetricSums | None, Tensor | None]]:
    """Open the sums on every rank, and add parts of two shapes where there are such; return both."""
    meetings = TurnMeetings(fake.turns, ranks)

    def live(rank: int) -> tuple[SymmetricSums | None, Tensor | None]:
        group: Any = FakeGroup(f"ranks of {rank}", TurnCommunicator(meetings, rank))
        fake.groups[group.group_name] = group
        library = lambda part: part.copy_(group.own.all_reduce(part, True))  # noqa: E731
        sums = open_symmetric(group, CPU, rank, library, fake.wait)
        if sums is None:
            return None, None
        sums(torch.ones(5, 8))
        total = sums(torch.full((3, 8), 2.0 + rank, dtype=torch.bfloat16))
        fake.wait()
        return sums, total

    return fake.turns.run([partial(live, rank) for rank in range(ranks)])


def test_parts_are_added_in_memory_of_all(fake: FakeSymmetric) -> None:
    for _, total in opened(fake, 3):
        assert total is not None and torch.equal(total, torch.full((3, 8), 9.0, dtype=torch.bfloat16))


@pytest.mark.parametrize("fault", ["short", "broken", "wrong", "absent"])
def test_no_rank_uses_what_one_cannot(fake: FakeSymmetric, fault: str) -> None:
    setattr(fake, fault, frozenset({1}))
    assert opened(fake, 3) == [(None, None)] * 3


def test_no_rank_waits_for_ever_for_one_whose_sum_fails(fake: FakeSymmetric) -> None:
    """The devices of the others wait in it by then, and can do nothing else."""
    fake.failing = frozenset({1})
    with pytest.raises(DeviceLate):
        opened(fake, 3)


def test_what_does_not_fit_is_left_to_the_library(fake: FakeSymmetric) -> None:
    (sums, _), _ = opened(fake, 2)
    assert sums is not None and sums.can_add(torch.zeros(4, 8))
    assert not sums.can_add(torch.zeros(MOST_BYTES // 4 + 4)) and not sums.can_add(torch.zeros(3))
    assert not sums.can_add(torch.zeros(4, 8, dtype=torch.int32))


@pytest.mark.parametrize("store", ["file:///run/ranks", "tcp://10.0.0.1:7000"])
def test_ranks_that_may_be_on_several_hosts_leave_it(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    """A rank whose neighbour is here would wait for one that has failed at its own, on another host."""
    asked: list[Any] = []
    monkeypatch.setattr(TorchCommunicator, "together", lambda self, call: asked.append(call))
    descriptor = {"kind": KIND, "store": store, "ranks": 2, "deadline": 1.0, "meet_within": 1.0}
    one = TorchCommunicator.open(torch.device("cuda:0"), descriptor, 1)
    assert one.open_sums() == one.library_sums
    assert len(asked) == store.startswith("file:")
