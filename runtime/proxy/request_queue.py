# SPDX-License-Identifier: Apache-2.0
"""The queue of admitted requests that wait for workers with room, and the estimate of their wait
(docs/decisions/036)."""

import random
from collections.abc import Callable, Iterator, Sequence

from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.fair_queue import FairQueue
from pontil.runtime.proxy.policy import tokens_before
from pontil.runtime.proxy.request import Request
from pontil.runtime.proxy.service_rate import Seats, ServiceRate, WaitEstimate
from pontil.runtime.sampling_params import SamplingParams

# A request is refused if it would wait for more than this part of the deadline: the rest is the margin for a wrong
# estimate.
ADMITTED_SHARE = 0.6
# Limits on queued requests and prompt tokens whatever the estimate says, because they take memory.
MOST_WAITING, MOST_WAITING_TOKENS = 8192, 4 << 20
# The expected tokens of an answer before any has ended.
FIRST_EXPECTATION = 128.0
# Clients that are refused together get different Retry-After values: up to this part longer.
JITTER = 0.5
LEAST_RETRY_SECONDS = 1.0


class RequestQueue:
    """Requests that wait for a worker. `push`, then `pop` when a worker has room; `advanced` and `started` as its
    prompt is computed, `drop` when the request ends in any way. `deadline` is in seconds from arrival until the prompt
    is computed or the first token has arrived: a prompt that is being computed is not waiting.

    In a fair share a request costs its prompt's tokens and those that it is expected to generate. Conservation: `costs`
    has exactly the waiting requests, `tokens` and `choices` are the sums of their prompt tokens and choices; `sent` has
    those that were popped and not dropped, with the time; `uncomputed` has the prompt tokens still to compute of
    those of them that have not started, and `to_compute` is its sum.
    """

    def __init__(
        self,
        deadline: float,
        seats: Callable[[], Seats],
        fair: bool = True,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.deadline, self.jitter = deadline, jitter
        self.waiting: FairQueue[Request] = FairQueue(fair)
        self.rate = ServiceRate(seats)
        self.costs: dict[str, float] = {}
        self.cost = 0.0
        self.tokens = self.choices = 0
        self.sent: dict[str, float] = {}
        self.uncomputed: dict[str, int] = {}
        self.to_compute = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.waiting)

    @property
    def is_measured(self) -> bool:
        """True if the length of a wait can be estimated."""
        return self.rate.prompts.per_second is not None

    def cost_of(self, request: Request) -> float:
        """Return the cost of a request in tokens; of one for a node, in bytes of what it is to compute. Requests of
        both kinds never wait in one queue."""
        if request.stage is not None and request.stage.data is not None:
            return max(1.0, float(len(request.stage.data)))
        output = FIRST_EXPECTATION if self.rate.output.value is None else self.rate.output.value
        return max(1.0, len(request.prompt) + request.params.n * min(float(request.params.max_tokens), output))

    def push(self, request: Request, weight: float, now: float) -> None:
        self.pass_time(now)
        cost = self.costs[request.id] = self.cost_of(request)
        self.count(request, cost, 1)
        self.waiting.push(request, request.caller, weight, request.priority, cost)

    def count(self, request: Request, cost: float, change: int) -> None:
        """Add a request to the sums (1) or remove it (-1)."""
        self.tokens += change * len(request.prompt)
        self.choices += change * request.params.n
        # Reset the sum of an empty queue, so that rounding errors do not stay in it.
        self.cost = self.cost + change * cost if self.choices else 0.0

    def peek(self) -> Request | None:
        return self.waiting.peek()

    def pop(self, now: float) -> Request:
        """Return the next request, which is now sent to workers."""
        self.pass_time(now)
        request = self.waiting.pop()
        self.count(request, self.costs.pop(request.id), -1)
        self.uncomputed[request.id] = len(request.prompt)
        self.to_compute += len(request.prompt)
        self.sent[request.id] = now
        self.rate.begun(now)
        return request

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
        rest = self.uncomputed.pop(request.id, 0)
        self.to_compute -= rest
        return rest

    def drop(self, request: Request, now: float) -> None:
        """Remove a request that has ended. One that was answered updates the expected length and time of answers."""
        self.pass_time(now)
        if self.waiting.remove(request):
            self.count(request, self.costs.pop(request.id), -1)
        self.forget_prompt(request)
        sent = self.sent.pop(request.id, None)
        if sent is not None:
            self.rate.ended(sent)
            if request.complete:
                output = sum(len(answer.ids) for answer in request.answers) / request.params.n
                self.rate.answered(now - sent, output)

    def pass_time(self, now: float) -> None:
        self.rate.pass_time(now, len(self.uncomputed))

    def wait(self, priority: int, caller: str, weight: float, tokens: int) -> float | None:
        """Return the seconds until the turn of a request that came now, with so many prompt tokens; None where it is
        not known. The time for its own prompt does not count."""
        known = self.rate.now_wait
        ahead = self.waiting.ahead_of(priority, caller, weight)
        return None if known is None else self.wait_after(ahead, tokens, known)

    def wait_after(self, cost: float, tokens: int, known: WaitEstimate) -> float:
        """Return the wait of so many prompt tokens if so much of the queue goes first, and what was sent takes
        turns with them."""
        part = min(1.0, cost / self.cost) if self.cost else 0.0
        sent = tokens_before(tokens, self.to_compute, len(self.uncomputed))
        return known.after(part * self.tokens + sent, part * self.choices)

    def check(self, asked: Sequence[tuple[int, SamplingParams]], priority: int, caller: str, weight: float) -> None:
        """Check that all of these, prompt lengths with their parameters, can be admitted together. Raise Unavailable,
        with the time after which they could be, and RequestError for what is always too much."""
        tokens = sum(prompt for prompt, _ in asked)
        full = self.tokens + tokens > MOST_WAITING_TOKENS or len(self.waiting) + len(asked) > MOST_WAITING
        if full and len(self.waiting):
            raise Unavailable("too many prompts wait already: try again later", self.deadline)
        wait, rate = self.wait(priority, caller, weight, tokens), self.rate.prompts.per_second
        if wait is None or rate is None:
            return
        if len(asked) > 1 and tokens / rate > self.deadline:
            says = f"these {len(asked)} prompts together take about {tokens / rate:.0f} s"
            raise RequestError(f"{says}, and {self.deadline:g} s is the limit: send fewer at once", param="prompt")
        limit = ADMITTED_SHARE * self.deadline
        # If nothing waits, the next free seat goes to this request, however long the last ones took.
        if wait > limit and len(self.waiting):
            says = f"the wait for a first token is about {wait:.0f} s now, and up to {limit:g} s are let in"
            raise self.refusal(says, wait - limit)

    def refusal(self, says: str, seconds: float) -> Unavailable:
        wait = max(LEAST_RETRY_SECONDS, min(seconds, self.deadline)) * (1.0 + JITTER * self.jitter())
        return Unavailable(f"{says}: try again in {wait:.0f} s", wait)

    def hopeless(self, now: float) -> list[tuple[Request, Unavailable]]:
        """Return the queued requests that cannot be served in time, each with its error; they stay queued. For the next
        one in turn only its actual waiting time counts: it will be served, so a rate that was measured wrong is
        measured again."""
        self.pass_time(now)
        ahead, found, known = 0.0, list[tuple[Request, Unavailable]](), self.rate.now_wait
        for place, request in enumerate(self.waiting):
            left = request.arrived + self.deadline - now
            wait = None if known is None else self.wait_after(ahead, len(request.prompt), known)
            if left > 0.0 and (not place or wait is None or wait <= left):
                ahead += self.costs[request.id]
            else:
                later = self.deadline if wait is None else wait - ADMITTED_SHARE * self.deadline
                found.append((request, self.refusal(f"no first token can come within {self.deadline:g} s", later)))
        return found
