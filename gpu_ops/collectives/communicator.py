# SPDX-License-Identifier: Apache-2.0
"""The interface of the collectives of one worker's ranks. Every rank makes the same calls in the same order."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor


class CollectiveError(Exception):
    """A collective that did not come about: a rank has ended, or did not arrive in time. The worker cannot go on."""


# The numbers of rows that go from each rank to each.
Counts = Sequence[Sequence[int]]


class Recordings(Protocol):
    """Recorded steps of a device, with the calls of a communicator that are a part of them."""

    def drop(self) -> None:
        """Give up every recording. None may be started after this."""


class Communicator(Protocol):
    """Rank `rank` of `size`. Only `all_reduce` adds: any other result holds the bits that some rank computed, so that
    it does not depend on the number of ranks. Every method raises CollectiveError."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def descriptor(self) -> dict[str, Any]:
        """Plain values by which the other ranks join rank 0."""

    def meet(self) -> None:
        """Come together with the other ranks, with more patience than other calls have. Called before any other method,
        when all ranks have the descriptor, which takes long where libraries have to find each other; and again where
        one rank may come much later than another. Never while a step is recorded."""

    def barrier(self) -> None:
        """Return once every rank has called it. What a rank wrote before is visible to the others after it."""

    def gather_columns(self, part: Tensor) -> Tensor:
        """Return the ranks' parts [rows, columns], all of one shape and type, side by side in the order of ranks:
        [rows, size * columns]."""

    def choose_rows(self, x: Tensor, owner: Tensor) -> Tensor:
        """Return x [rows, columns] where row r is as rank `owner[r]` (int64 [rows], the same on all ranks) has it."""

    def all_to_all(self, x: Tensor, counts: Counts) -> Tensor:
        """Send rows to other ranks: of x [rows, columns] the first `counts[rank][0]` go to rank 0, and so on. Return
        those that come, in the order of ranks: [sum of counts[r][rank], columns]. The counts, from each rank to each,
        are the same on all ranks, and equal to each other in a step that a device records."""

    def all_reduce(self, part: Tensor, in_order: bool) -> Tensor:
        """Return the sums of the ranks' parts [rows, columns] of floats, all of one shape and type, which may be in the
        memory of this one: the same bits on all ranks. On CPUs, and anywhere if they are added `in_order` of ranks, a
        row's bits depend on nothing else; a device's library may add in another order."""

    def broadcast(self, x: Tensor) -> None:
        """Give all ranks what rank 0 has in x, contiguous and of one shape and type on all of them."""

    def drop_at_close(self, recordings: Recordings) -> None:
        """Have `close` drop these first, unless they are gone by then: a library for devices waits until nothing that
        was recorded holds its connections."""

    def close(self) -> None:
        """Give up the memory or the connections. No method may be called after this. A library for devices may wait
        here for ranks that do not come."""


class SingleRank:
    """The communicator of a worker of one process."""

    rank, size = 0, 1

    @property
    def descriptor(self) -> dict[str, Any]:
        return {}

    def meet(self) -> None:
        return

    def barrier(self) -> None:
        return

    def gather_columns(self, part: Tensor) -> Tensor:
        return part

    def choose_rows(self, x: Tensor, owner: Tensor) -> Tensor:
        return x

    def all_to_all(self, x: Tensor, counts: Counts) -> Tensor:
        return x

    def all_reduce(self, part: Tensor, in_order: bool) -> Tensor:
        return part

    def broadcast(self, x: Tensor) -> None:
        return

    def drop_at_close(self, recordings: Recordings) -> None:
        return

    def close(self) -> None:
        return


def added(parts: Tensor) -> Tensor:
    """Return the sums over the first axis of floats [ranks, ...], one part after the other in float32, in their own
    type."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part
    return total.to(parts.dtype)
