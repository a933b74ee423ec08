# SPDX-License-Identifier: Apache-2.0
"""Routing: the choice of a request's workers, a pure function of a snapshot."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pontil.runtime.accounting.counts import DECODE, PREFILL, WHOLE

# Work given to a worker beyond what it computes now: prompt tokens, in steps of its own, and choices for seats that are
# still taken. Enough that it never waits for the proxy, and so little that the proxy still decides the order.
AHEAD_STEPS = 4
SPARE_SEATS = 2
# Larger counts of other proxies' work are no counts.
MOST_STATED = 1 << 32


@dataclass(frozen=True, slots=True)
class OtherLoad:
    """The work that `proxies` other proxies have given to a worker: requests, choices, and prompt tokens to compute."""

    proxies: int = 0
    in_flight: int = 0
    taken: int = 0
    uncomputed: int = 0

    def share_of(self, whole: int) -> int:
        """Return an even share of what belongs to all proxies, at least one."""
        return max(1, whole // (self.proxies + 1))

    @classmethod
    def of(cls, stated: Mapping[str, int] | None) -> "OtherLoad":
        """Return the load in a heartbeat, in which any number may be wrong."""
        known = {name: min(max(0, (stated or {}).get(name, 0)), MOST_STATED) for name in cls.__slots__}
        return cls(**known)


NO_OTHERS = OtherLoad()


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One worker's load at one moment. `context` is the longest sequence it can hold, in tokens; `uncomputed` counts
    the prompt tokens dispatched to it that it has not computed, `step_tokens` is the most that it computes in one step.
    `taken` counts the choices dispatched to it that have not ended; `seats` of them run at once. The counts are this
    proxy's own; `others` is what other proxies had given to the worker when it last said so."""

    incarnation: str
    name: str
    role: str
    peer_endpoint: str
    in_flight: int
    free_blocks: int
    seats: int
    context: int
    uncomputed: int = 0
    step_tokens: int = 256
    taken: int = 0
    others: OtherLoad = NO_OTHERS

    @property
    def can_prefill(self) -> bool:
        """True if another prompt may be dispatched to it: within this proxy's even share, or what the others leave."""
        ahead = AHEAD_STEPS * self.step_tokens
        return self.uncomputed < max(ahead - self.others.uncomputed, self.others.share_of(ahead))

    def can_seat(self, choices: int, spare: int = SPARE_SEATS) -> bool:
        """Return whether so many more choices have seats, up to `spare` too many. What is beyond an even share of the
        seats must be left by the other proxies. So no proxy waits for what another one takes again and again."""
        room = max(self.seats + spare - self.others.taken, self.others.share_of(self.seats))
        return self.taken + choices <= room or (not self.taken and choices <= self.seats + spare)

    @property
    def all_in_flight(self) -> int:
        return self.in_flight + self.others.in_flight

    @property
    def all_uncomputed(self) -> int:
        return self.uncomputed + self.others.uncomputed


@dataclass(frozen=True, slots=True)
class CollocatedRoute:
    """A route on which one worker does everything."""

    worker: WorkerLoad

    @property
    def phases(self) -> dict[str, str]:
        """The phase that each worker, by incarnation, does for the request."""
        return {self.worker.incarnation: WHOLE}

    @property
    def workers(self) -> tuple[WorkerLoad, ...]:
        return (self.worker,)

    @property
    def name(self) -> str:
        return self.worker.name


@dataclass(frozen=True, slots=True)
class DisaggregatedRoute:
    """A route of two workers: one computes the prompt, the other receives its KV blocks and generates."""

    prefill: WorkerLoad
    decode: WorkerLoad

    @property
    def phases(self) -> dict[str, str]:
        return {self.prefill.incarnation: PREFILL, self.decode.incarnation: DECODE}

    @property
    def workers(self) -> tuple[WorkerLoad, ...]:
        return (self.prefill, self.decode)

    @property
    def name(self) -> str:
        return f"{self.prefill.name}>{self.decode.name}"


Route = DisaggregatedRoute | CollocatedRoute
Disagg = Literal["auto", "always", "never"]

# The incarnations that serve a request together.
Team = tuple[str, ...]


# Factor on a prompt's time on a decode worker: its chunks are smaller there, and share their steps.
INTERLEAVED = 2


def plan(
    workers: Sequence[WorkerLoad], disagg: Disagg, broken: Collection[Team] = frozenset(), prompt_tokens: int = 0
) -> Route | None:
    """Return the route of a request. Every worker can do everything, so one of any role is enough; None without
    workers.

    "auto" disaggregates a request unless a decode worker would compute its prompt sooner than an overloaded prefill
    worker: prefill and decode workers then share the backlog. Teams in `broken` have failed this request: another pair
    is tried, then a decode worker alone, then any worker.
    """
    if not workers:
        return None
    prefill = [worker for worker in workers if worker.role == "prefill"]
    decode = [worker for worker in workers if worker.role == "decode"]
    if disagg != "never" and prefill and decode:
        pair = best_pair(prefill, decode, broken)
        if pair is not None:
            relief = None if disagg == "always" or broken else relieving(pair.prefill, decode, prompt_tokens)
            return pair if relief is None else CollocatedRoute(relief)
    whole = [CollocatedRoute(worker) for worker in by_load(workers)]
    if broken:
        whole.sort(key=lambda route: (tuple(route.phases) in broken, route.worker.role == "prefill"))
    return whole[0]


def next_route(
    workers: Sequence[WorkerLoad], disagg: Disagg, prompt_tokens: int, choices: int, spare: int = SPARE_SEATS
) -> Route | None:
    """Return the route of a request that can wait: as `plan`, but only over workers that have room now, up to `spare`
    choices more than seats, else None."""
    prefill = [worker for worker in workers if worker.role == "prefill"]
    decode = [worker for worker in workers if worker.role == "decode"]
    if disagg == "never" or not prefill or not decode:
        free = [worker for worker in by_load(workers) if worker.can_prefill and worker.can_seat(choices, spare)]
        return CollocatedRoute(free[0]) if free else None
    seated = [worker for worker in decode if worker.can_seat(choices, spare)]
    if not seated:
        return None
    prefiller = by_backlog(prefill)[0]
    relief = None if disagg == "always" else relieving(prefiller, seated, prompt_tokens)
    if relief is not None and relief.can_prefill:
        return CollocatedRoute(relief)
    return DisaggregatedRoute(prefiller, by_load(seated)[0]) if prefiller.can_prefill else None


def every_route(workers: Sequence[WorkerLoad], disagg: Disagg) -> list[Route]:
    """Return each pair that may serve a request, and each worker that is in no pair."""
    prefill = [worker for worker in workers if worker.role == "prefill"]
    decode = [worker for worker in workers if worker.role == "decode"]
    pairs = [DisaggregatedRoute(first, second) for first in prefill for second in decode] if disagg != "never" else []
    paired = {worker.incarnation for pair in pairs for worker in pair.workers}
    return [*pairs, *(CollocatedRoute(worker) for worker in workers if worker.incarnation not in paired)]


def best_pair(
    prefill: Sequence[WorkerLoad], decode: Sequence[WorkerLoad], broken: Collection[Team]
) -> DisaggregatedRoute | None:
    pairs = (DisaggregatedRoute(first, second) for first in by_backlog(prefill) for second in by_load(decode))
    return next((pair for pair in pairs if tuple(pair.phases) not in broken), None)


def relieving(prefill: WorkerLoad, decode: Sequence[WorkerLoad], prompt_tokens: int) -> WorkerLoad | None:
    """Return the decode worker that would compute the prompt at least a step sooner than `prefill`, or None."""
    worker = by_backlog(decode)[0]
    alone = INTERLEAVED * (worker.all_uncomputed + prompt_tokens)
    return worker if alone + worker.step_tokens < prefill.all_uncomputed + prompt_tokens else None


def by_backlog(workers: Sequence[WorkerLoad]) -> list[WorkerLoad]:
    """Sort by prompt tokens to compute, fewest first, then by load."""
    return sorted(by_load(workers), key=lambda worker: worker.all_uncomputed)


def by_load(workers: Sequence[WorkerLoad]) -> list[WorkerLoad]:
    """Sort by requests, fewest first, then by free blocks, most first, then by registration."""
    return sorted(workers, key=lambda worker: (worker.all_in_flight, -worker.free_blocks))
