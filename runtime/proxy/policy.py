# SPDX-License-Identifier: Apache-2.0
"""Which workers serve a request: a pure function of a snapshot."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from pontil.runtime.accounting.counts import DECODE, PREFILL, WHOLE


@dataclass(frozen=True, slots=True)
class Load:
    """One worker at one moment. `context` is the longest sequence it can hold, in tokens."""

    incarnation: str
    name: str
    role: str
    peer_endpoint: str
    in_flight: int
    free_blocks: int
    seats: int
    context: int


@dataclass(frozen=True, slots=True)
class Whole:
    """One worker does everything."""

    worker: Load

    @property
    def phases(self) -> dict[str, str]:
        """What each worker, by incarnation, does for the request."""
        return {self.worker.incarnation: WHOLE}

    @property
    def workers(self) -> tuple[Load, ...]:
        return (self.worker,)

    @property
    def name(self) -> str:
        return self.worker.name


@dataclass(frozen=True, slots=True)
class Pair:
    """One computes the prompt, the other receives its blocks and generates."""

    prefill: Load
    decode: Load

    @property
    def phases(self) -> dict[str, str]:
        return {self.prefill.incarnation: PREFILL, self.decode.incarnation: DECODE}

    @property
    def workers(self) -> tuple[Load, ...]:
        return (self.prefill, self.decode)

    @property
    def name(self) -> str:
        return f"{self.prefill.name}>{self.decode.name}"


Route = Pair | Whole


# The incarnations that serve a request together.
Team = tuple[str, ...]


def plan(
    workers: Sequence[Load], disagg: Literal["always", "never"], broken: Collection[Team] = frozenset()
) -> Route | None:
    """Where a request goes. Every worker can do everything, so one of any role is enough; None when there is none.

    Teams that are `broken` failed this request: another pair is tried, then a decode worker alone, then any worker.
    """
    if not workers:
        return None
    prefill = [worker for worker in workers if worker.role == "prefill"]
    decode = [worker for worker in workers if worker.role == "decode"]
    if disagg == "always" and prefill and decode:
        pair = best_pair(prefill, decode, broken)
        if pair is not None:
            return pair
    whole = [Whole(worker) for worker in by_load(workers)]
    if broken:
        whole.sort(key=lambda route: (tuple(route.phases) in broken, route.worker.role == "prefill"))
    return whole[0]


def every_route(workers: Sequence[Load], disagg: Literal["always", "never"]) -> list[Route]:
    """Each pair that may serve a request, and each worker alone that is in none."""
    prefill = [worker for worker in workers if worker.role == "prefill"]
    decode = [worker for worker in workers if worker.role == "decode"]
    pairs = [Pair(first, second) for first in prefill for second in decode] if disagg == "always" else []
    paired = {worker.incarnation for pair in pairs for worker in pair.workers}
    return [*pairs, *(Whole(worker) for worker in workers if worker.incarnation not in paired)]


def best_pair(prefill: Sequence[Load], decode: Sequence[Load], broken: Collection[Team]) -> Pair | None:
    pairs = (Pair(first, second) for first in by_load(prefill) for second in by_load(decode))
    return next((pair for pair in pairs if tuple(pair.phases) not in broken), None)


def by_load(workers: Sequence[Load]) -> list[Load]:
    """Fewest requests first, then most free blocks, then the one that registered first."""
    return sorted(workers, key=lambda worker: (worker.in_flight, -worker.free_blocks))
