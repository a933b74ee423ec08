# SPDX-License-Identifier: Apache-2.0
"""The ranks of one worker as threads of one test, of which one runs at a time: the same order in every run."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pontil.gpu_ops.collectives.communicator import Counts, Recordings, added

# Seconds after which a turn that never comes is a fault of the test itself.
PATIENCE = 120.0


class RankTurns:
    """A rank goes on until it waits for something that others have to do; then the next one that can goes on. Without
    `run` there is nobody to wait for."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.ready: dict[int, Callable[[], bool]] = {}
        self.turn = 0
        self.own = threading.local()

    def run(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run the work of each rank to its end; return their results. Raise the first error that any of them raised."""
        results, errors = [None] * len(works), list[BaseException]()
        self.ready = {rank: lambda: True for rank in range(len(works))}
        self.turn = 0

        def lived(rank: int) -> None:
            self.own.rank = rank
            self.await_turn()
            try:
                results[rank] = works[rank]()
            except BaseException as error:
                errors.append(error)
            del self.ready[rank]
            self.pass_on()

        threads = [threading.Thread(target=lived, args=(rank,), daemon=True) for rank in self.ready]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a rank does not end"
        if errors:
            raise errors[0]
        return results

    def wait(self, ready: Callable[[], bool]) -> bool:
        """Let the other ranks go on until something is so. Return False if it is not, and none of them can go on."""
        if not ready() and self.ready:
            self.ready[self.own.rank] = ready
            self.pass_on()
            self.await_turn()
            self.ready[self.own.rank] = lambda: True
        return ready()

    def pass_on(self) -> None:
        """Give the turn to the next rank that can go on; if there is none, to the next one."""
        with self.changed:
            after = sorted(self.ready, key=lambda rank: (rank <= self.own.rank, rank))
            self.turn = next((rank for rank in after if self.ready[rank]()), after[0] if after else -1)
            self.changed.notify_all()

    def await_turn(self) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.turn == self.own.rank, PATIENCE), "no rank goes on"


class TurnMeetings:
    """The tensors that the ranks of one worker have brought to each of their calls."""

    def __init__(self, turns: RankTurns, size: int) -> None:
        self.turns, self.size = turns, size
        self.brought: list[dict[int, Tensor]] = []

    def exchange(self, rank: int, number: int, own: Tensor) -> list[Tensor]:
        while len(self.brought) <= number:
            self.brought.append({})
        here = self.brought[number]
        here[rank] = own.clone()
        assert self.turns.wait(lambda: len(here) == self.size), f"rank {rank} is alone in call {number}"
        parts = [here[other] for other in range(self.size)]
        assert all(one.shape == own.shape and one.dtype == own.dtype for one in parts), [one.shape for one in parts]
        return parts


class TurnCommunicator:
    """A Communicator between threads that take turns, with real numbers."""

    def __init__(self, meetings: TurnMeetings, rank: int) -> None:
        self.meetings, self.rank, self.size = meetings, rank, meetings.size
        self.descriptor: dict[str, Any] = {}
        self.calls = 0

    def exchange(self, own: Tensor) -> list[Tensor]:
        self.calls += 1
        return self.meetings.exchange(self.rank, self.calls - 1, own)

    def meet(self) -> None:
        self.barrier()

    def barrier(self) -> None:
        self.exchange(torch.zeros(0))

    def gather_columns(self, part: Tensor) -> Tensor:
        return torch.cat(self.exchange(part), dim=1)

    def choose_rows(self, x: Tensor, owner: Tensor) -> Tensor:
        return torch.stack(self.exchange(x))[owner, torch.arange(len(x))]

    def all_to_all(self, x: Tensor, counts: Counts) -> Tensor:
        most = max(map(sum, counts))
        parts = self.exchange(torch.nn.functional.pad(x, (0, 0, 0, most - len(x))))
        given = [part[: sum(own)].split(list(own)) for part, own in zip(parts, counts, strict=True)]
        return torch.cat([rows[self.rank] for rows in given])

    def all_reduce(self, part: Tensor, in_order: bool) -> Tensor:
        return added(torch.stack(self.exchange(part)))

    def broadcast(self, x: Tensor) -> None:
        x.copy_(self.exchange(x)[0])

    def drop_at_close(self, recordings: Recordings) -> None:
        return

    def close(self) -> None:
        return
