# SPDX-License-Identifier: Apache-2.0
"""The queue of admitted requests that wait for workers with room, and the estimate of their wait
(docs/decisions/036)."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.foundation.fair_share import EVERYBODY, FairShare
from pontil.runtime.proxy.admission.fair_queue import FairQueue
from pontil.runtime.proxy.admission.jitter import fraction
from pontil.runtime.proxy.admission.priority_level import QueueEntry
from pontil.runtime.proxy.fleet.service_rate import Seats, ServiceRate, WaitEstimate
from pontil.runtime.proxy.requests.request import Request, Work
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.policy import TURN_TOKENS, tokens_before

# A request is refused if it would wait for more than this part of the deadline: the rest is the margin for a wrong
# estimate.
ADMITTED_SHARE = 0.6
# Limits on queued requests and prompt tokens whatever the estimate says, because they take memory.
MOST_WAITING, MOST_WAITING_TOKENS = 8192, 4 << 20
# A caller has at most so many times as much of these as it leaves free for others.
LEFT_FREE = 3
# The expected tokens of an answer before any has ended.
FIRST_EXPECTATION = 128.0
# Clients that are refused together get different Retry-After values: up to this part longer.
JITTER = 0.5
LEAST_RETRY_SECONDS = 1.0


class RequestQueue:
    """Requests that wait for a worker, in an order that several of these queues may share: those of a queue `behind`
    another one are in nobody's wait there. `push`, then `serve` when a worker has room; `advanced` and `started` as its
    prompt is computed, `drop` when the request ends in any way. One whose turn has come may be `parked`. `deadline` is
    in seconds from arrival until the prompt is computed or the first token has arrived: a prompt that is being computed
    is not waiting. `claimable` returns the seats that a caller can have of those that hold more than their part.

    In a fair share a request costs its prompt's tokens and those that it is expected to generate; when it ends, the
    share is corrected by what the workers counted. Conservation: `costs` has exactly the waiting requests, and
    `charged` the costs of those that were served and have not ended; `tokens` and `choices` are the sums of their
    prompt tokens and choices; `sent` has those that were served and not dropped, with the time; `uncomputed` has the
    prompt tokens still to compute of those of them that have not started, and `to_compute` is its sum.
    """

    def __init__(
        self,
        deadline: float,
        seats: Callable[[], Seats],
        order: FairQueue[Request] | None = None,
        jitter: Callable[[], float] = fraction,
        claimable: Callable[[FairShare], int] = lambda share: 0,
        behind: "RequestQueue | None" = None,
    ) -> None:
        self.deadline, self.jitter, self.claimable, self.behind = deadline, jitter, claimable, behind
        self.waiting: FairQueue[Request] = FairQueue() if order is None else order
        self.fair = self.waiting.fair
        # Requests that wait for something else than room, with what puts them back.
        self.parked: dict[str, QueueEntry[Request]] = {}
        # Waiting requests and their prompt tokens by caller, parked ones among them.
        self.places: Counter[str] = Counter()
        self.place_tokens: Counter[str] = Counter()
        self.rate = ServiceRate(seats)
        self.costs: dict[str, float] = {}
        self.charged: dict[str, float] = {}
        self.cost = 0.0
        self.tokens = self.choices = 0
        self.sent: dict[str, float] = {}
        self.uncomputed: dict[str, int] = {}
        self.to_compute = 0

    def __len__(self) -> int:
        return len(self.costs)

    def __iter__(self) -> Iterator[Request]:
        return (request for request in self.waiting if request.id in self.costs)

    @property
    def is_measured(self) -> bool:
        """True if the length of a wait can be estimated."""
        return self.now_wait is not None

    @property
    def now_wait(self) -> WaitEstimate | None:
        """The estimate of waits by what was measured before this queue, or else here: those that give way keep their
        seats for as long as they pause."""
        return self.ahead[-1].rate.now_wait or self.rate.now_wait

    def cost_of(self, request: Request) -> float:
        """Return the cost of a request: in tokens, or in another unit where none waits whose cost is in tokens."""
        output = FIRST_EXPECTATION if self.rate.output.value is None else self.rate.output.value
        return request.work.cost(output)

    def push(self, request: Request, now: float) -> None:
        self.pass_time(now)
        cost = self.costs[request.id] = self.cost_of(request)
        self.count(request, cost, 1)
        self.keep(request, 1)
        ticket = request.ticket
        self.waiting.push(request, ticket.caller, ticket.weight, ticket.place, cost, lane_of(request))

    def park(self, request: Request, now: float) -> None:
        """Take out a request whose turn has come, and that waits for something else than room. It is in nobody's wait
        meanwhile."""
        self.pass_time(now)
        self.parked[request.id] = self.waiting.take_out(request)
        self.count(request, self.costs.pop(request.id), -1)

    def unpark(self, request: Request, now: float) -> None:
        """Have a parked request wait for room again, at its place."""
        self.pass_time(now)
        entry = self.parked.pop(request.id)
        self.costs[request.id] = entry.cost
        self.count(request, entry.cost, 1)
        self.waiting.put_back(entry)

    def keep(self, request: Request, change: int) -> None:
        """Count the memory of a request that waits, for whatever, (1) or no longer does (-1)."""
        for places, amount in ((self.places, 1), (self.place_tokens, len(request.prompt))):
            places[request.ticket.caller] += change * amount
            if not places[request.ticket.caller]:
                del places[request.ticket.caller]

    def count(self, request: Request, cost: float, change: int) -> None:
        """Add a request to the sums (1) or remove it (-1)."""
        self.tokens += change * len(request.prompt)
        self.choices += change * request.params.n
        # Reset the sum of an empty queue, so that rounding errors do not stay in it.
        self.cost = self.cost + change * cost if self.choices else 0.0

    def serve(self, request: Request, now: float) -> None:
        """Take out a request that is now sent to workers."""
        self.pass_time(now)
        self.waiting.serve(request)
        cost = self.charged[request.id] = self.costs.pop(request.id)
        self.count(request, cost, -1)
        self.keep(request, -1)
        self.uncomputed[request.id] = len(request.prompt)
        self.to_compute += len(request.prompt)
        self.sent[request.id] = now
        self.rate.begun(now)

    def advanced(self, request: Request, tokens: int, now: float) -> None:
        """Note that more of its prompt is computed."""
        if request.id in self.uncomputed:
            self.pass_time(now)
            part = min(tokens, self.uncomputed[request.id])
            self.uncomputed[request.id] -= part
            self.to_compute -= part
            self.rate.prompts.add(part)

    def started(self, request: Request, now: float) -> None:
        """Note that its first token has come."""
        self.pass_time(now)
        self.rate.prompts.add(self.forget_prompt(request))

    def forget_prompt(self, request: Request) -> int:
        """Note that nothing more of its prompt is to be computed; return how much was."""
        uncomputed_tokens = self.uncomputed.pop(request.id, 0)
        self.to_compute -= uncomputed_tokens
        return uncomputed_tokens

    def set_aside(self, request: Request, now: float) -> None:
        """Note that workers have no more to do with a request for now; nothing is learned from its end."""
        self.pass_time(now)
        self.forget_prompt(request)
        if (sent_at := self.sent.pop(request.id, None)) is not None:
            self.rate.ended(sent_at)

    def drop(self, request: Request, now: float) -> None:
        """Remove a request that has ended. One that was answered updates the expected length and time of answers."""
        self.pass_time(now)
        if self.waiting.remove(request):
            self.count(request, self.costs.pop(request.id), -1)
            self.keep(request, -1)
        elif self.parked.pop(request.id, None) is not None:
            self.keep(request, -1)
        uncomputed_tokens = self.forget_prompt(request)
        if (charged := self.charged.pop(request.id, None)) is not None:
            ticket, usage = request.ticket, request.usage
            whole = request.work.cost(usage.completion_tokens / request.params.n)
            exact = max(1.0, whole - uncomputed_tokens - usage.cached_tokens)
            self.waiting.correct(ticket.caller, ticket.weight, ticket.place, exact - charged)
        sent_at = self.sent.pop(request.id, None)
        if sent_at is not None:
            self.rate.ended(sent_at)
            if request.complete:
                output = sum(len(answer.ids) for answer in request.answers) / request.params.n
                self.rate.answered(now - sent_at, output, request.params.n)

    def pass_time(self, now: float) -> None:
        self.rate.pass_time(now, len(self.uncomputed))

    def wait(self, ticket: Ticket, tokens: int, share: FairShare = EVERYBODY) -> float | None:
        """Return the seconds until the turn of a request that came now, with so many prompt tokens; None where it is
        not known. The time for its own prompt does not count."""
        estimate = self.now_wait
        if estimate is None:
            return None
        ahead = self.waiting.ahead_of(ticket.place, ticket.caller, tokens)
        return self.wait_after(ahead, tokens, self.known_to(share, estimate))

    def known_to(self, share: FairShare, estimate: WaitEstimate) -> WaitEstimate:
        """Return the estimate for a caller: seats that others are to give back are free to it."""
        free = estimate.seats.free or self.claimable(share)
        return estimate if free == estimate.seats.free else replace(estimate, seats=replace(estimate.seats, free=free))

    def wait_after(self, cost: float, tokens: int, estimate: WaitEstimate) -> float:
        """Return the wait of so many prompt tokens if so much of the queue goes first, and what was sent takes
        turns with them."""
        queues = self.ahead
        whole, waiting_tokens = sum(queue.cost for queue in queues), sum(queue.tokens for queue in queues)
        part = min(1.0, cost / whole) if whole else 0.0
        first = queues[-1]
        sent_tokens = tokens_before(tokens, first.to_compute, len(first.uncomputed))
        return estimate.after(part * waiting_tokens + sent_tokens, part * sum(queue.choices for queue in queues))

    @property
    def ahead(self) -> list["RequestQueue"]:
        """The queues whose requests a newcomer of this one waits for."""
        return [self] if self.behind is None else [self, self.behind]

    def check(self, works: Sequence[Work], ticket: Ticket, share: FairShare = EVERYBODY) -> None:
        """Check that all of these can be admitted together. Raise Unavailable, with the time after which they could be,
        and RequestError for what is always too much."""
        tokens = sum(len(work.prompt) for work in works)
        if (len(self) or self.parked) and not self.has_place(ticket.caller, len(works), tokens):
            raise Unavailable("too many prompts wait already: try again later", self.deadline)
        wait, estimate = self.wait(ticket, tokens, share), self.now_wait
        if wait is None or estimate is None:
            return
        if len(works) > 1 and tokens / estimate.rate > self.deadline:
            says = f"these {len(works)} prompts together take about {tokens / estimate.rate:.0f} s"
            raise RequestError(f"{says}, and {self.deadline:g} s is the limit: send fewer at once", param="prompt")
        limit = ADMITTED_SHARE * self.deadline
        # If nothing waits, the next free seat goes to this request, however long the last ones took.
        if wait > limit and any(len(queue) for queue in self.ahead):
            says = f"the wait for a first token is about {wait:.0f} s now, and up to {limit:g} s are let in"
            raise self.refusal(says, wait - limit)

    def has_place(self, caller: str, requests: int, tokens: int) -> bool:
        """Return whether a caller may have so many more waiting. One with a single prompt and nothing waiting needs
        room only; another one leaves a part of the memory free for others, and all together never take it."""
        parked_tokens = sum(len(entry.item.prompt) for entry in self.parked.values())
        room = MOST_WAITING - len(self) - len(self.parked) - requests
        token_room = MOST_WAITING_TOKENS - self.tokens - parked_tokens - tokens
        if not self.fair or (requests == 1 and caller not in self.places):
            return room >= 0 and token_room >= 0
        held_places, held_tokens = self.places[caller] + requests, self.place_tokens[caller] + tokens
        return held_places <= LEFT_FREE * room and held_tokens <= LEFT_FREE * token_room

    def refusal(self, says: str, seconds: float) -> Unavailable:
        wait = max(LEAST_RETRY_SECONDS, min(seconds, self.deadline)) * (1.0 + JITTER * self.jitter())
        return Unavailable(f"{says}: try again in {wait:.0f} s", wait)

    def hopeless(self, now: float) -> list[tuple[Request, Unavailable]]:
        """Return the queued requests that cannot be served in time, each with its error; they stay queued. Lines of
        batches wait for as long as they must. Behind another queue, and for the next one in turn, only the actual
        waiting time counts: that one will be served, so a rate that was measured wrong is measured again."""
        self.pass_time(now)
        ahead, refusals = 0.0, list[tuple[Request, Unavailable]]()
        estimate = self.now_wait if self.behind is None else None
        estimates: dict[FairShare, WaitEstimate] = {}
        for place, request in enumerate(self):
            time_left = request.times.arrived + self.deadline - now
            wait = None
            if estimate is not None:
                if request.share not in estimates:
                    estimates[request.share] = self.known_to(request.share, estimate)
                wait = self.wait_after(ahead, len(request.prompt), estimates[request.share])
            if request.ticket.is_line or time_left > 0.0 and (not place or wait is None or wait <= time_left):
                ahead += self.costs[request.id]
            else:
                later = self.deadline if wait is None else wait - ADMITTED_SHARE * self.deadline
                refusals.append((request, self.refusal(f"no first token can come within {self.deadline:g} s", later)))
        return refusals


def lane_of(request: Request) -> Hashable:
    """Return what tells apart the requests of a caller that need not wait for each other: those of another release need
    other workers, those of several stages more of them, and a prompt has its turns beside much longer ones."""
    turns = len(request.prompt) // TURN_TOKENS
    # Lengths of one lane are within a factor of four.
    return request.release, request.work.joint is not None, turns.bit_length() // 2
