# SPDX-License-Identifier: Apache-2.0
"""Meetings of the ranks of one worker: the communicator of the world, which has no shared memory to wait in."""

import secrets
from typing import Any

import torch
from fibres import FibreProcess
from ghost_blocks import FollowerGuards
from torch import Tensor
from virtual_time import HERE

from pontil.gpu_ops.collectives.communicator import (
    CollectiveError,
    Communicator,
    Counts,
    Recordings,
    SingleRank,
    added,
)
from pontil.gpu_ops.collectives.shared_memory import DEADLINE
from pontil.runtime.worker.ranks import driver, rank_client

# Seconds until a rank that waits looks whether the others live, as csrc/rank_group.h does.
LOOK_AFTER = 0.02


class RankMeetings:
    """The place where the ranks of one incarnation of a worker meet: who is there, and the parts that they brought, by
    meeting and rank. The first fault that any of them notices is everyone's from then on. `guards` are what the world
    knows of their blocks."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.guards = ranks, FollowerGuards()
        self.members: dict[int, FibreProcess] = {}
        self.parts: dict[int, dict[int, Tensor]] = {}
        self.fault = ""

    def join(self, rank: int, process: FibreProcess) -> None:
        self.members[rank] = process
        process.at_death.append(self.wake)

    def wake(self) -> None:
        for process in self.members.values():
            process.notify()

    def bring(self, number: int, rank: int, part: Tensor) -> None:
        """Come to a meeting. Nobody reads the one before the last any more."""
        self.parts.setdefault(number, {})[rank] = part
        self.parts.pop(number - 2, None)
        self.wake()

    def missing(self, number: int) -> list[int]:
        return [rank for rank in range(self.ranks) if rank not in self.parts.get(number, {})]

    def fail(self, rank: int, what: str) -> None:
        self.fault = self.fault or f"rank {rank} {what}"
        self.wake()


class MeetingCommunicator:
    """A Communicator of the world (gpu_ops/collectives/communicator.py)."""

    def __init__(self, meetings: RankMeetings, rank: int, descriptor: dict[str, Any]) -> None:
        process = HERE.world.current
        assert isinstance(process, FibreProcess), "ranks wait for each other"
        self.meetings, self.rank, self.size, self.descriptor = meetings, rank, meetings.ranks, descriptor
        self.process, self.number = process, 0
        meetings.join(rank, process)

    def meet(self) -> None:
        return

    def bring(self, part: Tensor) -> list[Tensor]:
        """Return the parts of all ranks once all have come."""
        self.check()
        self.number += 1
        number, meetings, now = self.number, self.meetings, self.process.world.now
        began = now()
        self.process.acts(began, lambda: meetings.bring(number, self.rank, part))
        while missing := meetings.missing(number):
            self.check()
            ended = [rank for rank in missing if rank in meetings.members and not meetings.members[rank].alive]
            if ended and now() >= began + LOOK_AFTER:
                meetings.fail(ended[0], "has ended")
            elif now() >= began + DEADLINE:
                meetings.fail(missing[0], f"did not arrive within {DEADLINE:g} s")
            else:
                self.process.pause(began + (LOOK_AFTER if ended else DEADLINE))
        parts = [meetings.parts[number][rank] for rank in range(self.size)]
        for rank, other in enumerate(parts):
            if other.shape != part.shape:
                meetings.fail(rank, "computes something else")
        self.check()
        return parts

    def check(self) -> None:
        if self.meetings.fault:
            raise CollectiveError(self.meetings.fault)

    def barrier(self) -> None:
        self.bring(torch.empty(0))

    def gather_columns(self, part: Tensor) -> Tensor:
        return torch.cat(self.bring(part), dim=1)

    def choose_rows(self, x: Tensor, owner: Tensor) -> Tensor:
        return torch.stack(self.bring(x))[owner, torch.arange(len(owner))]

    def all_to_all(self, x: Tensor, counts: Counts) -> Tensor:
        raise AssertionError("the models of the world have no experts")

    def all_reduce(self, part: Tensor, in_order: bool) -> Tensor:
        return added(torch.stack(self.bring(part)))

    def broadcast(self, x: Tensor) -> None:
        x.copy_(self.bring(x)[0])

    def drop_at_close(self, recordings: Recordings) -> None:
        return

    def close(self) -> None:
        return


def meet_in_the_world() -> None:
    """Have ranks meet here, and nowhere else."""
    places: dict[str, RankMeetings] = {}

    def create(*given: Any) -> Communicator:
        """Stands for create_communicator."""
        ranks = given[2]
        if ranks == 1:
            return SingleRank()
        identity = secrets.token_hex(8)
        places[identity] = RankMeetings(ranks)
        return MeetingCommunicator(places[identity], 0, {"identity": identity})

    def opened(*given: Any) -> Communicator:
        """Stands for open_communicator."""
        _, _, descriptor, rank = given
        return MeetingCommunicator(places[descriptor["identity"]], rank, descriptor)

    untyped: Any = driver
    untyped.create_communicator = create
    untyped = rank_client
    untyped.open_communicator = opened
