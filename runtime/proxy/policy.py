# SPDX-License-Identifier: Apache-2.0
"""Routing: the choice of a request's workers, a pure function of a snapshot.

All costs are in prompt tokens that a worker could compute instead (docs/decisions/058).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pontil.runtime.accounting.counts import DECODE, PREFILL, WHOLE

# Work given to a worker beyond what it computes now: prompt tokens, in steps of its own, and choices for seats that are
# still taken. Enough that it never waits for the proxy, and so little that the proxy still decides the order.
AHEAD_STEPS = 4
SPARE_SEATS = 2
# Cost of a prompt token whose KV is pulled from another worker: most of that is done while the rest is computed.
PULLED = 1 / 16
# Cost of each request beside which an answer is generated.
SEAT_TOKENS = 32
# Part of the even share from which on a worker's recent work counts against it, so that none reaches 1.5 times as much.
HOT = 1.2
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
    proxy's own; `others` is what other proxies had given to the worker when it last said so. Of the prompt that is to
    be routed it has `found` tokens cached, as far as is known. `recent` tokens were given to it or made by it lately.

    The caller of that request can have `claimable` seats of those that hold more than their part. One that is
    `without_prompts` to be computed there always has its turn.
    """

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
    found: int = 0
    recent: int = 0
    others: OtherLoad = NO_OTHERS
    claimable: int = 0
    without_prompts: bool = False

    @property
    def ahead(self) -> int:
        """The prompt tokens that it may have to compute and still be given more: an even share of what it may have at
        once, or all that the other proxies leave."""
        whole = AHEAD_STEPS * self.step_tokens
        return max(whole - self.others.uncomputed, self.others.share_of(whole))

    def can_prefill(self, saved: int = 0) -> bool:
        """Return whether another prompt may be dispatched to it, which would cost `saved` tokens more elsewhere."""
        return self.without_prompts or self.uncomputed < self.ahead + saved

    def missing(self, prompt_tokens: int) -> int:
        """Return how many tokens of the prompt it would have to compute."""
        return max(0, prompt_tokens - self.found)

    def can_seat(self, spare: int = SPARE_SEATS) -> bool:
        """Return whether a choice more has a seat, up to `spare` too many: the first one of a request is enough, as
        choices are seated one by one. What is beyond an even share of the seats must be left by the other proxies. So
        no proxy waits for what another one takes again and again."""
        room = max(self.seats + spare - self.others.taken, self.others.share_of(self.seats))
        return self.taken < room or not self.taken

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
    def prompt_worker(self) -> WorkerLoad:
        """The worker that computes the prompt."""
        return self.worker

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
    def prompt_worker(self) -> WorkerLoad:
        """The worker that computes the prompt."""
        return self.prefill

    @property
    def name(self) -> str:
        return f"{self.prefill.name}>{self.decode.name}"


Route = DisaggregatedRoute | CollocatedRoute
Disagg = Literal["auto", "always", "never"]

# The incarnations that serve a request together.
Team = tuple[str, ...]


# Factor on a prompt's time on a decode worker: its chunks are smaller there, and share their steps.
INTERLEAVED = 2


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a prompt of so many tokens on workers, of which `even` is the even share of recent work."""

    prompt_tokens: int
    even: float

    @classmethod
    def of(cls, workers: Sequence[WorkerLoad], prompt_tokens: int) -> "Costs":
        """Return the costs among these workers, which do the same kind of work."""
        return cls(prompt_tokens, sum(worker.recent for worker in workers) / len(workers) if workers else 0.0)

    def excess(self, worker: WorkerLoad) -> float:
        """Return the recent work beyond what a worker may have without being avoided."""
        return max(0.0, worker.recent - HOT * self.even - AHEAD_STEPS * worker.step_tokens)

    def prefill(self, worker: WorkerLoad) -> float:
        """Return the cost of computing the prompt there for another worker."""
        return worker.all_uncomputed + worker.missing(self.prompt_tokens) + self.excess(worker)

    def decode(self, worker: WorkerLoad) -> float:
        """Return the cost of pulling the prompt's KV there and generating."""
        pulled = PULLED * worker.missing(self.prompt_tokens)
        return pulled + SEAT_TOKENS * worker.all_in_flight + self.excess(worker)

    def whole(self, worker: WorkerLoad) -> float:
        """Return the cost of doing everything there, where there are no other kinds of workers."""
        return self.prefill(worker) + SEAT_TOKENS * worker.all_in_flight

    def relieving(self, worker: WorkerLoad) -> float:
        """Return the cost of doing everything on a decode worker. Its other requests wait for the computed part: it has
        to be sooner by a step, or by that part of one that the computed tokens are of the prompt."""
        missing = worker.missing(self.prompt_tokens)
        computing = INTERLEAVED * (worker.all_uncomputed + missing)
        margin = worker.step_tokens * (missing / self.prompt_tokens if self.prompt_tokens else 1.0)
        return computing + margin + SEAT_TOKENS * worker.all_in_flight + self.excess(worker)


def plan(
    workers: Sequence[WorkerLoad], disagg: Disagg, broken: Collection[Team] = frozenset(), prompt_tokens: int = 0
) -> Route | None:
    """Return the route of a request. Every worker can do everything, so one of any role is enough; None without
    workers.

    "auto" disaggregates a request unless that costs more than to have a decode worker do everything: because it has
    nearly all of the prompt cached, or because prefill workers are overloaded, whose backlog decode workers then share.
    Teams in `broken` have failed this request: another pair is tried, then a decode worker alone, then any worker.
    """
    if not workers:
        return None
    prefill, decode = split(workers, disagg)
    if prefill and decode:
        pair = best_pair(prefill, decode, broken, prompt_tokens)
        if pair is not None:
            relief = None if disagg == "always" or broken else relieving(pair, prefill, decode, prompt_tokens)
            return pair if relief is None else CollocatedRoute(relief)
    whole = [CollocatedRoute(worker) for worker in by_cost(workers, Costs.of(workers, prompt_tokens).whole)]
    if broken:
        whole.sort(key=lambda route: (tuple(route.phases) in broken, route.worker.role == "prefill"))
    return whole[0]


def next_route(
    workers: Sequence[WorkerLoad], disagg: Disagg, prompt_tokens: int, spare: int = SPARE_SEATS
) -> Route | None:
    """Return the route of a request that can wait: as `plan`, but only over workers that have room now, up to `spare`
    choices more than seats, else None. Without such a one it takes a seat of callers that have more than their part,
    unless nothing is to be `spare`."""
    prefill, decode = split(workers, disagg)
    if not prefill or not decode:
        free = seated(with_room(workers), spare)
        costs = Costs.of(workers, prompt_tokens)
        return CollocatedRoute(by_cost(free, costs.whole)[0]) if free else None
    free = seated(decode, spare)
    if not free:
        return None
    ready = with_room(prefill)
    costs, decoder = Costs.of(prefill, prompt_tokens), Costs.of(decode, prompt_tokens)
    pair = DisaggregatedRoute(by_cost(ready or prefill, costs.prefill)[0], by_cost(free, decoder.decode)[0])
    relief = None if disagg == "always" else relieving(pair, prefill, with_room(free), prompt_tokens)
    if relief is not None:
        return CollocatedRoute(relief)
    return pair if ready else None


def every_route(workers: Sequence[WorkerLoad], disagg: Disagg) -> list[Route]:
    """Return each pair that may serve a request, and each worker that is in no pair."""
    prefill = [worker for worker in workers if worker.role == "prefill"]
    decode = [worker for worker in workers if worker.role == "decode"]
    pairs = [DisaggregatedRoute(first, second) for first in prefill for second in decode] if disagg != "never" else []
    paired = {worker.incarnation for pair in pairs for worker in pair.workers}
    return [*pairs, *(CollocatedRoute(worker) for worker in workers if worker.incarnation not in paired)]


def split(workers: Sequence[WorkerLoad], disagg: Disagg) -> tuple[list[WorkerLoad], list[WorkerLoad]]:
    """Return the prefill and the decode workers of pairs; none where nothing is to be disaggregated."""
    if disagg == "never":
        return [], []
    prefill = [worker for worker in workers if worker.role == "prefill"]
    return prefill, [worker for worker in workers if worker.role == "decode"]


def best_pair(
    prefill: Sequence[WorkerLoad], decode: Sequence[WorkerLoad], broken: Collection[Team], prompt_tokens: int
) -> DisaggregatedRoute | None:
    first, second = Costs.of(prefill, prompt_tokens), Costs.of(decode, prompt_tokens)
    ordered = by_cost(decode, second.decode)
    pairs = (DisaggregatedRoute(one, other) for one in by_cost(prefill, first.prefill) for other in ordered)
    return next((pair for pair in pairs if tuple(pair.phases) not in broken), None)


def relieving(
    pair: DisaggregatedRoute, prefill: Sequence[WorkerLoad], decode: Sequence[WorkerLoad], prompt_tokens: int
) -> WorkerLoad | None:
    """Return the decode worker that does everything at less cost than the pair, or None."""
    if not decode:
        return None
    first, second = Costs.of(prefill, prompt_tokens), Costs.of(decode, prompt_tokens)
    worker = by_cost(decode, second.relieving)[0]
    return worker if second.relieving(worker) < first.prefill(pair.prefill) + second.decode(pair.decode) else None


def seated(workers: Sequence[WorkerLoad], spare: int) -> list[WorkerLoad]:
    """Return the workers with a seat for a choice more; without any, those where others are to give one back."""
    free = [worker for worker in workers if worker.can_seat(spare)]
    return free or [worker for worker in workers if worker.claimable and spare]


def with_room(workers: Sequence[WorkerLoad]) -> list[WorkerLoad]:
    """Return the workers to which another prompt may be dispatched. One that has more of it cached than others may have
    as much more to do before: there it is computed no later than elsewhere."""
    least = min((worker.found for worker in workers), default=0)
    return [worker for worker in workers if worker.can_prefill(worker.found - least)]


def by_cost(workers: Sequence[WorkerLoad], cost: Callable[[WorkerLoad], float]) -> list[WorkerLoad]:
    """Sort by cost, least first, then by requests, fewest first, then by free blocks, most first, then by recent work,
    least first, then by registration."""
    return sorted(workers, key=lambda worker: (cost(worker), worker.all_in_flight, -worker.free_blocks, worker.recent))
