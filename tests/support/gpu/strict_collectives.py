# SPDX-License-Identifier: Apache-2.0
"""Collectives between devices that are not there, in the place of `torch.distributed`: the ranks of a worker are in one
process, one device each. A call is started on a stream and returns at once, as a library's for GPUs does. A rank that
waits for its device lets the others go on.

Where such a library would hang or mix up bytes, DriverFault is raised: ranks whose calls differ, a rank that waits for
a call which another has not made, and memory of another device than the rank's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from pretend_device import PretendDevice
from rank_turns import RankTurns
from strict_driver import DriverFault, Moment, Reached, StrictGraph
from torch import Tensor

from pontil.gpu_ops.collectives import torch_distributed


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One rank's side of a collective: all ranks must bring the same, and all from a recorded step or none."""

    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    recorded: bool

    def __str__(self) -> str:
        return (
            f"{self.kind} of {list(self.shape)} {str(self.dtype).removeprefix('torch.')}" + " recorded" * self.recorded
        )


@dataclass(eq=False)
class StrictGroup:
    """The calls of one rank of a group, in their order."""

    rank: int
    device: torch.device
    calls: list[CollectiveCall] = field(default_factory=list)
    # The calls that the device may still be waiting in, with their numbers.
    open: list[tuple[Moment, int]] = field(default_factory=list)
    # Recordings with calls of this group, and the way in which it has ended.
    recorded: WeakSet[StrictGraph] = field(default_factory=WeakSet)
    end: str | None = None


class StrictCollectives:
    """The functions of `torch.distributed` that communicators call, for the ranks of one worker."""

    def __init__(self, there: PretendDevice, ranks: int, turns: RankTurns) -> None:
        self.there, self.driver, self.ranks, self.turns = there, there.driver, ranks, turns
        self.groups: list[StrictGroup] = []
        self.joining: StrictGroup | None = None
        self.captured = self.meetings = 0
        # Set where the test is about a device that hangs, which is a fault otherwise.
        self.may_hang = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Stand in for `torch.distributed` while devices are waited for with what their ranks still miss."""
        with patch.object(torch_distributed, "dist", self), patch.object(self.driver, "before_wait", self.check):
            yield

    def init_process_group(self, backend: str, init_method: str, **given: Any) -> None:
        assert backend == "nccl" and init_method
        self.joining = StrictGroup(given["rank"], given["device_id"])

    def new_group(self, timeout: Any) -> StrictGroup:
        assert self.joining is not None
        made, self.joining = self.joining, None
        self.groups.append(made)
        return made

    def barrier(self, group: StrictGroup | None = None) -> None:
        assert group is None and self.driver.capturing is None, "ranks of devices meet where one may be late"
        self.meetings += 1

    @property
    def distributed_c10d(self) -> "StrictCollectives":
        """The module that has `_abort_process_group`."""
        return self

    @property
    def own_group(self) -> StrictGroup | None:
        """The group of the calling rank, which is known by its device."""
        here = self.driver.current_device()
        return next((one for one in self.groups if one.device == here and one.end is None), None)

    def is_initialized(self) -> bool:
        return self.own_group is not None

    def destroy_process_group(self) -> None:
        """End the calling rank's group, once all that it started is over."""
        self.check(self.driver.first_streams[self.driver.own.device].behind)
        self.finish("destroyed")

    def _abort_process_group(self) -> None:
        self.finish("aborted")

    def finish(self, how: str) -> None:
        group = self.own_group
        assert group is not None
        if held := sum(not graph.is_over for graph in group.recorded):
            raise DriverFault(f"rank {group.rank} would hang at its end: {held} recorded steps hold its connections")
        group.end = how

    def all_gather_into_tensor(self, target: Tensor, own: Tensor, group: StrictGroup) -> None:
        if target.numel() != own.numel() * self.ranks:
            raise DriverFault(f"{list(own.shape)} of {self.ranks} ranks are gathered into {list(target.shape)}")
        self.call("all_gather", group, own, [(target, True), (own, False)])

    def all_to_all_single(self, target: Tensor, own: Tensor, taken: object, given: object, group: StrictGroup) -> None:
        if taken is not None or given is not None:
            raise DriverFault(f"rank {group.rank} would wait for its device for the numbers of rows to send")
        if target.shape != own.shape or len(own) % self.ranks:
            raise DriverFault(f"{list(own.shape)} are dealt out to {self.ranks} ranks as {list(target.shape)}")
        self.call("all_to_all", group, own, [(target, True), (own, False)])

    def all_reduce(self, tensor: Tensor, group: StrictGroup) -> None:
        self.call("all_reduce", group, tensor, [(tensor, True)])

    def broadcast(self, tensor: Tensor, src: int, group: StrictGroup) -> None:
        assert src == 0
        self.call("broadcast", group, tensor, [(tensor, True)])

    def call(self, kind: str, group: StrictGroup, own: Tensor, tensors: list[tuple[Tensor, bool]]) -> None:
        """Start a call on the rank's current stream, or record it."""
        for tensor, _ in tensors:
            if tensor.device != group.device:
                raise DriverFault(f"rank {group.rank} of {group.device} brings memory of {tensor.device}")
            if not tensor.is_contiguous():
                raise DriverFault(f"rank {group.rank} brings {list(own.shape)} whose numbers are not side by side")
        self.there.tape.call(kind, [one for one, _ in tensors])
        uses = [(self.there.places(one), writes) for one, writes in tensors]
        graph = self.driver.capturing
        moment = self.driver.started_on(group.device, uses)
        made = CollectiveCall(kind, tuple(own.shape), own.dtype, moment is None)
        if moment is None:
            assert graph is not None
            self.there.note_foreign(graph, [one for one, _ in tensors])
            group.recorded.add(graph)
            graph.replayed.append(lambda moment: self.join(group, made, moment))
            self.captured += 1
        else:
            self.join(group, made, moment)

    def join(self, group: StrictGroup, made: CollectiveCall, moment: Moment) -> None:
        """Compare a rank's next call with those of the others."""
        number = len(group.calls)
        group.calls.append(made)
        group.open.append((moment, number))
        for other in self.groups:
            if number < len(other.calls) and other.calls[number] != made:
                raise DriverFault(
                    f"ranks would hang in collective {number}: rank {group.rank} makes an {made}, "
                    f"rank {other.rank} an {other.calls[number]}"
                )

    def check(self, clock: Reached) -> bool:
        """Let the other ranks go on until all have made the calls that are waited for. Return whether they have."""
        if not self.turns.wait(lambda: self.missing(clock) is None):
            if self.may_hang:
                return False
            raise DriverFault(self.missing(clock))
        for group in self.groups:
            group.open = [one for one in group.open if not clock.covers(one[0])]
        return True

    def missing(self, clock: Reached) -> str | None:
        """Return what keeps a rank waiting for what the clock covers."""
        for group in self.groups:
            for number in (number for moment, number in group.open if clock.covers(moment)):
                made = {other.rank for other in self.groups if number < len(other.calls)}
                if len(made) < self.ranks:
                    absent = next(rank for rank in range(self.ranks) if rank not in made)
                    made_by = f"rank {group.rank} would hang in collective {number}, an {group.calls[number]}"
                    return f"{made_by}: rank {absent} has not made it"
        return None
