# SPDX-License-Identifier: Apache-2.0
"""Routing: the choice of a request's workers, a pure function of a snapshot.

All costs are in prompt tokens that a worker could compute instead (docs/decisions/058).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pontil.runtime.accounting.counts import DECODE, PREFILL, WHOLE
from pontil.runtime.foundation.value import value
from pontil.runtime.proxy.routing.pace import FASTEST, WorkerPace

# Work given to a worker beyond what it computes now: prompt tokens, in steps of its own, and choices for seats that are
# still taken. Enough that it never waits for the proxy, and so little that the proxy still decides the order.
AHEAD_STEPS = 4
SPARE_SEATS = 2
# Prompts of a worker take turns of so many tokens (docs/decisions/070).
TURN_TOKENS = 64
# Cost of a prompt token whose KV is pulled from another worker: most of that is done while the rest is computed.
PULLED = 1 / 16
# Cost of each request beside which an answer is generated.
SEAT_TOKENS = 32
# Part of the even share from which on a worker's recent work counts against it, so that none reaches 1.5 times as much.
HOT = 1.2
# Pairs up to which all are tried by the self-test.
MOST_PAIRS = 256
# Larger counts of other proxies' work are no counts.
MOST_STATED = 1 << 32


@value(frozen=True, slots=True)
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
        counts = {name: min(max(0, (stated or {}).get(name, 0)), MOST_STATED) for name in cls.__slots__}
        return cls(**counts)


NO_OTHERS = OtherLoad()


@value(frozen=True, slots=True)
class WorkerLoad:
    """One worker's load at one moment. `context` is the longest sequence it can hold, in tokens; `uncomputed` counts
    the prompt tokens dispatched to it that it has not computed, of so many `prompts`; `step_tokens` is the most that it
    computes in one step. `taken` counts the choices dispatched to it that have not ended; `seats` of them run at once.
    The counts are this proxy's own; `others` is what other proxies had given to the worker when it last said so. Of the
    prompt that is to be routed it has `found` tokens cached, as far as is known. `recent` tokens were given to it or
    made by it lately, or would have been by the fastest. It can pull nothing from `lost_peers` now. Its `pace` is in
    all of its costs.

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
    prompts: int = 1
    lost_peers: frozenset[str] = frozenset()
    claimable: int = 0
    without_prompts: bool = False
    pace: WorkerPace = FASTEST
    # Derived once: a load is read for many requests, until that of its worker changes.
    seats_cost: float = field(init=False, compare=False, repr=False)
    ahead: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Add the work of other proxies. `ahead` are the prompt tokens that it may have to compute and still be given
        more: an even share of what it may have at once, or all that the other proxies leave. Where it is slow that is
        no more than the fastest computes meanwhile, but a step. `seats_cost` is that of generating beside its
        requests."""
        whole, other_load = AHEAD_STEPS * self.step_tokens, self.others
        if self.pace.prompts > 1.0:
            whole = max(self.step_tokens, int(whole / self.pace.prompts))
        object.__setattr__(self, "ahead", max(whole - other_load.uncomputed, other_load.share_of(whole)))
        cost = SEAT_TOKENS * self.pace.steps * (self.in_flight + other_load.in_flight) + self.pace.behind
        object.__setattr__(self, "seats_cost", cost)

    @property
    def all_in_flight(self) -> int:
        return self.in_flight + self.others.in_flight

    @property
    def all_uncomputed(self) -> int:
        return self.uncomputed + self.others.uncomputed

    def can_prefill(self, prompt_tokens: int, saved: int = 0) -> bool:
        """Return whether this prompt may be dispatched to it, which would cost `saved` tokens more elsewhere."""
        most = self.ahead + saved
        if self.without_prompts or self.uncomputed < most:
            return True
        return tokens_before(self.missing(prompt_tokens), self.uncomputed, self.prompts) < most

    def missing(self, prompt_tokens: int) -> int:
        """Return how many tokens of the prompt it would have to compute."""
        return prompt_tokens - self.found if prompt_tokens > self.found else 0

    def can_seat(self, spare: int = SPARE_SEATS) -> bool:
        """Return whether a choice more has a seat, up to `spare` too many: the first one of a request is enough, as
        choices are seated one by one. What is beyond an even share of the seats must be left by the other proxies. So
        no proxy waits for what another one takes again and again."""
        room = max(self.seats + spare - self.others.taken, self.others.share_of(self.seats))
        return self.taken < room or not self.taken


@dataclass(frozen=True, slots=True)
class Route:
    """The workers of a request: `prefill` computes the prompt, and `decode` receives its KV blocks and generates. One
    worker may do everything."""

    prefill: WorkerLoad
    decode: WorkerLoad

    @classmethod
    def alone(cls, worker: WorkerLoad) -> "Route":
        return cls(worker, worker)

    @property
    def is_pair(self) -> bool:
        return self.prefill.incarnation != self.decode.incarnation

    @property
    def is_cut(self) -> bool:
        """Return whether the decode worker cannot pull from the prefill worker now."""
        return self.prefill.incarnation in self.decode.lost_peers

    @property
    def workers(self) -> tuple[WorkerLoad, ...]:
        return (self.prefill, self.decode) if self.is_pair else (self.decode,)

    @property
    def phases(self) -> dict[str, str]:
        """The phase that each worker, by incarnation, does for the request."""
        kinds = (PREFILL, DECODE) if self.is_pair else (WHOLE,)
        return {worker.incarnation: kind for worker, kind in zip(self.workers, kinds, strict=True)}

    @property
    def name(self) -> str:
        return ">".join(worker.name for worker in self.workers)


Disagg = Literal["auto", "always", "never"]

# The cost of a worker, in tokens.
Cost = Callable[[WorkerLoad], float]

# The incarnations that serve a request together.
Team = tuple[str, ...]


# Factor on a prompt's time on a decode worker: its chunks are smaller there, and share their steps.
INTERLEAVED = 2


@value(frozen=True, slots=True)
class Costs:
    """The costs of a prompt of so many tokens on workers, of which `even` is the even share of recent work."""

    prompt_tokens: int
    even: float

    @classmethod
    def of(cls, workers: Sequence[WorkerLoad], prompt_tokens: int) -> "Costs":
        """Return the costs among these workers, which do the same kind of work. Slow ones may have less of it."""
        recent = [worker.recent for worker in workers if worker.pace is FASTEST] or [one.recent for one in workers]
        return cls(prompt_tokens, sum(recent) / len(recent) if recent else 0.0)

    def excess(self, worker: WorkerLoad) -> float:
        """Return the recent work beyond what a worker may have without being avoided."""
        beyond = worker.recent - HOT * self.even - AHEAD_STEPS * worker.step_tokens
        return beyond if beyond > 0.0 else 0.0

    def prefill(self, worker: WorkerLoad) -> float:
        """Return the cost of computing the prompt there for another worker."""
        computing = worker.uncomputed + worker.others.uncomputed + worker.missing(self.prompt_tokens)
        return worker.pace.prompts * computing + self.excess(worker)

    def decode(self, worker: WorkerLoad) -> float:
        """Return the cost of pulling the prompt's KV there and generating."""
        return PULLED * worker.missing(self.prompt_tokens) + worker.seats_cost + self.excess(worker)

    def whole(self, worker: WorkerLoad) -> float:
        """Return the cost of doing everything there, where there are no other kinds of workers."""
        return self.prefill(worker) + worker.seats_cost

    def relieving(self, worker: WorkerLoad) -> float:
        """Return the cost of doing everything on a decode worker. Its other requests wait for the computed part: it has
        to be sooner by a step, or by that part of one that the computed tokens are of the prompt."""
        missing = worker.missing(self.prompt_tokens)
        computing = INTERLEAVED * worker.pace.prompts * (worker.uncomputed + worker.others.uncomputed + missing)
        margin = worker.step_tokens * (missing / self.prompt_tokens if self.prompt_tokens else 1.0)
        return computing + margin + worker.seats_cost + self.excess(worker)


def plan(
    workers: Sequence[WorkerLoad], disagg: Disagg, broken: Collection[Team] = frozenset(), prompt_tokens: int = 0
) -> Route | None:
    """Return the route of a request. Every worker can do everything, so one of any role is enough; None without
    workers.

    "auto" disaggregates a request unless that costs more than to have a decode worker do everything: because it has
    nearly all of the prompt cached, or because prefill workers are overloaded, whose backlog decode workers then share.
    Teams in `broken` have failed this request: another pair is tried, then a decode worker alone, then any worker. A
    pair whose link is cut is none.
    """
    if not workers:
        return None
    prefill, decode = split(workers, disagg)
    if prefill and decode:
        costs, decoder = Costs.of(prefill, prompt_tokens), Costs.of(decode, prompt_tokens)
        pair = best_pair(prefill, costs.prefill, decode, decoder.decode, broken)
        if pair is not None:
            alone = seating(workers, disagg)
            relief = None if disagg == "always" or broken else relieving(pair, prefill, alone, prompt_tokens)
            return pair if relief is None else Route.alone(relief)
    whole = [Route.alone(worker) for worker in by_cost(workers, Costs.of(workers, prompt_tokens).whole)]
    if broken:
        whole.sort(key=lambda route: (tuple(route.phases) in broken, route.decode.role == "prefill"))
    return whole[0]


def next_route(
    workers: Sequence[WorkerLoad], disagg: Disagg, prompt_tokens: int, spare: int = SPARE_SEATS
) -> Route | None:
    """Return the route of a request that can wait: as `plan`, but only over workers that have room now, up to `spare`
    choices more than seats, else None. Without such a one it takes a seat of callers that have more than their part,
    unless nothing is to be `spare`."""
    prefill, decode = split(workers, disagg)
    if not prefill or not decode:
        free = seated(with_room(workers, prompt_tokens), spare)
        costs = Costs.of(workers, prompt_tokens)
        return Route.alone(cheapest(free, costs.whole)) if free else None
    seats = seated(seating(workers, disagg), spare)
    free = [worker for worker in seats if worker.role == "decode"]
    ready = with_room(prefill, prompt_tokens)
    costs, decoder = Costs.of(prefill, prompt_tokens), Costs.of(decode, prompt_tokens)
    pair = best_pair(ready or prefill, costs.prefill, free, decoder.decode) if free else None
    alone = with_room(seats, prompt_tokens)
    if pair is None:
        return Route.alone(cheapest(alone, decoder.relieving)) if alone else None
    if disagg != "always":
        relief = relieving(pair, prefill, alone, prompt_tokens)
        # Blocks of prefill workers may wait for one that pulls no more: no prompt waits for that beside an idle one.
        idle = [] if ready else [worker for worker in alone if not worker.all_in_flight]
        if relief is not None or idle:
            return Route.alone(relief or cheapest(idle, decoder.relieving))
    return pair if ready else None


def every_route(workers: Sequence[WorkerLoad], disagg: Disagg) -> list[Route]:
    """Return each pair that may serve a request, and each worker that is in no pair. Of more pairs than MOST_PAIRS
    return so many that each worker is in one: their number grows with the product of the workers."""
    prefill, decode = split(workers, disagg)
    pairs = [Route(first, second) for first, second in pairs_of(prefill, decode)]
    paired_workers = {worker.incarnation for pair in pairs for worker in pair.workers}
    whole = [pair for pair in pairs if not pair.is_cut]
    return [*whole, *(Route.alone(worker) for worker in workers if worker.incarnation not in paired_workers)]


def pairs_of(prefill: Sequence[WorkerLoad], decode: Sequence[WorkerLoad]) -> list[tuple[WorkerLoad, WorkerLoad]]:
    if len(prefill) * len(decode) <= MOST_PAIRS:
        return [(first, second) for first in prefill for second in decode]
    return [
        (prefill[place % len(prefill)], decode[place % len(decode)]) for place in range(max(len(prefill), len(decode)))
    ]


def split(workers: Sequence[WorkerLoad], disagg: Disagg) -> tuple[list[WorkerLoad], list[WorkerLoad]]:
    """Return the prefill and the decode workers of pairs; none where nothing is to be disaggregated, or can be."""
    if disagg == "never":
        return [], []
    prefill = [worker for worker in workers if worker.role == "prefill"]
    decode = [worker for worker in workers if worker.role == "decode"]
    return ([], []) if are_apart(prefill, decode) else (prefill, decode)


def seating(workers: Sequence[WorkerLoad], disagg: Disagg) -> Sequence[WorkerLoad]:
    """Return the workers at one of which a request has its seat: any where there are no pairs; else those that decode,
    and unless every request is to be disaggregated also those that compute prompts of their own."""
    prefill, decode = split(workers, disagg)
    if not prefill or not decode:
        return workers
    return decode if disagg == "always" else [worker for worker in workers if worker.role != "prefill"]


def are_apart(prefill: Sequence[WorkerLoad], decode: Sequence[WorkerLoad]) -> bool:
    """Return whether every link between these workers is cut."""
    return all(load.lost_peers and all(peer.incarnation in load.lost_peers for peer in prefill) for load in decode)


def best_pair(
    prefill: Sequence[WorkerLoad],
    first_cost: Cost,
    decode: Sequence[WorkerLoad],
    second_cost: Cost,
    broken: Collection[Team] = frozenset(),
) -> Route | None:
    """Return the first pair of these workers, the cheapest of each first, that is neither cut nor broken."""
    best = Route(cheapest(prefill, first_cost), cheapest(decode, second_cost))
    if not best.is_cut and not broken:
        return best
    decode_order = by_cost(decode, second_cost)
    pairs = (Route(first, second) for first in by_cost(prefill, first_cost) for second in decode_order)
    return next((pair for pair in pairs if not pair.is_cut and tuple(pair.phases) not in broken), None)


def relieving(
    pair: Route, prefill: Sequence[WorkerLoad], alone: Sequence[WorkerLoad], prompt_tokens: int
) -> WorkerLoad | None:
    """Return the one of the workers `alone` that does everything at less cost than the pair, or None."""
    if not alone:
        return None
    first, second = Costs.of(prefill, prompt_tokens), Costs.of(alone, prompt_tokens)
    worker = cheapest(alone, second.relieving)
    return worker if second.relieving(worker) < first.prefill(pair.prefill) + second.decode(pair.decode) else None


def seated(workers: Sequence[WorkerLoad], spare: int) -> list[WorkerLoad]:
    """Return the workers with a seat for a choice more; without any, those where others are to give one back."""
    free = [worker for worker in workers if worker.can_seat(spare)]
    return free or [worker for worker in workers if worker.claimable and spare]


def tokens_before(prompt_tokens: int, uncomputed: int, prompts: int) -> int:
    """Return the most tokens that are computed before a prompt of so many, besides its own, where so many are yet
    `uncomputed` of other `prompts`: they take turns."""
    return min(uncomputed, prompts * max(TURN_TOKENS, prompt_tokens))


def with_room(workers: Sequence[WorkerLoad], prompt_tokens: int) -> list[WorkerLoad]:
    """Return the workers to which this prompt may be dispatched. One that has more of it cached than others may have
    as much more to do before: there it is computed no later than elsewhere."""
    least = min((worker.found for worker in workers), default=0)
    return [worker for worker in workers if worker.can_prefill(prompt_tokens, worker.found - least)]


def by_cost(workers: Sequence[WorkerLoad], cost: Cost) -> list[WorkerLoad]:
    """Sort by cost, least first, then by `preference`, then by registration."""
    return sorted(workers, key=lambda worker: (cost(worker), *preference(worker)))


def cheapest(workers: Sequence[WorkerLoad], cost: Cost) -> WorkerLoad:
    """Return the first of some workers by cost, without sorting the rest."""
    costs = [cost(worker) for worker in workers]
    least = min(costs)
    return min([worker for worker, load_cost in zip(workers, costs, strict=True) if load_cost == least], key=preference)


def preference(worker: WorkerLoad) -> tuple[int, int, int]:
    """Return the order between workers of equal cost: by requests, fewest first, then by free blocks, most first, then
    by recent work, least first."""
    return worker.in_flight + worker.others.in_flight, -worker.free_blocks, worker.recent
