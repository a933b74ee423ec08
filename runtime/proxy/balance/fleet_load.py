# SPDX-License-Identifier: Apache-2.0
"""The load of the workers that generate, looked at once a second: what is asked of them, and what steps cost them."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, inf

from pontil.runtime.proxy.balance.balancer import DECODE, PREFILL
from pontil.runtime.proxy.balance.fitted_costs import DecayingRate, FittedCosts
from pontil.runtime.proxy.balance.goodput import FULL, AskedRequest, GoodputModel, RequestMix, StepLine
from pontil.runtime.proxy.balance.needs import CAREFUL, Needs, TimeLimits
from pontil.runtime.proxy.balance.paces import Paces
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import WorkerGroup
from pontil.runtime.proxy.routing.policy import PULLED

# Seconds over which what is asked is averaged, and in which what waits is to be done.
MEMORY, CATCH_UP = 6.0, 5.0
# Seconds over which what is served, what was asked for and what has ended are compared.
LASTING = 10.0
# Seconds from one look to the next.
LOOK = 1.0
# Requests of late that are told apart.
SAMPLES = 16
# The tokens that an answer is expected to have before any has ended.
EXPECTED = 128.0
MICROSECOND = 1e-6
MIXED = "mixed"
NO_LIMITS = TimeLimits()


def rate() -> DecayingRate:
    return DecayingRate(MEMORY)


def lasting_rate() -> DecayingRate:
    return DecayingRate(LASTING)


@dataclass(slots=True)
class AskedWork:
    """The work of requests as they are sent to workers: their prompts' tokens, those of them that no worker had
    cached, and the tokens that their answers are `expected` to have, of each choice. The `recent` ones are kept: when
    they were sent, tokens to compute, and tokens of an answer."""

    requests: DecayingRate = field(default_factory=rate)
    prompts: DecayingRate = field(default_factory=rate)
    uncached: DecayingRate = field(default_factory=rate)
    answers: DecayingRate = field(default_factory=rate)
    lasting_answers: DecayingRate = field(default_factory=lasting_rate)
    expected: float = EXPECTED
    recent: deque[tuple[float, int, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def samples(self, now: float) -> list[AskedRequest]:
        """Return recent requests, the newest of most weight, as rates have it."""
        return [AskedRequest(exp((at - now) / MEMORY), prompt, answer) for at, prompt, answer in self.recent]

    def add(self, now: float, prompt: int, uncached: int, choices: int, most: int) -> None:
        """Add a request with so many choices of at `most` so many tokens."""
        self.requests.add(now, 1.0)
        self.prompts.add(now, prompt)
        self.uncached.add(now, uncached)
        tokens = choices * min(float(most), self.expected)
        self.answers.add(now, tokens)
        self.lasting_answers.add(now, tokens)
        self.recent.append((now, uncached, min(float(most), self.expected)))


@dataclass(frozen=True, slots=True)
class QueuedWork:
    """The work that waits in this proxy: prompt tokens and choices; the tokens of an answer on average, None while none
    has ended; and how many have."""

    tokens: int
    choices: int
    expected: float | None
    ended: int = 0


@dataclass(frozen=True, slots=True)
class StepTotals:
    """A worker's counts since its start, as its last heartbeat had them."""

    steps: int
    microseconds: int
    tokens: int
    prompt_tokens: int

    @classmethod
    def of(cls, worker: RegisteredWorker) -> "StepTotals":
        """Return them; one of an earlier version tells only what it did for this proxy."""
        counts = worker.counters
        return cls(
            counts.get("steps", 0),
            counts.get("step_microseconds", 0),
            counts.get("engine_tokens", counts.get("generated_tokens", 0)),
            counts.get("engine_prompt_tokens", counts.get("prompt_tokens_computed", 0)),
        )

    def since(self, before: "StepTotals") -> "StepTotals":
        return StepTotals(
            self.steps - before.steps,
            self.microseconds - before.microseconds,
            self.tokens - before.tokens,
            self.prompt_tokens - before.prompt_tokens,
        )


@dataclass(slots=True)
class FleetLoad:
    """The load of a group of workers under `limits`. `look` at it from time to time; `needs` are those of the last
    look, None while costs are not known."""

    group: WorkerGroup
    asked: AskedWork
    queued: Callable[[], QueuedWork]
    limits: TimeLimits
    # Decode workers compute prompts where prefill workers have too much to do.
    helpers: bool = False
    costs: FittedCosts = field(default_factory=FittedCosts)
    paces: Paces = field(default_factory=Paces)
    served: DecayingRate = field(default_factory=lasting_rate)
    ended: DecayingRate = field(default_factory=lasting_rate)
    counted: int = 0
    needs: Needs | None = None
    # By incarnation: the counts up to which a worker's steps were learned from, and up to which its tokens are served.
    learned: dict[str, StepTotals] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    looked: float | None = None

    def is_due(self, now: float) -> bool:
        return self.looked is None or now - self.looked >= LOOK

    def look(self, now: float) -> None:
        self.looked = now
        workers = self.group.available
        for worker in workers:
            self.learn(worker, now)
        self.paces.assign(workers, now)
        present = {worker.hello.sender for worker in workers}
        self.learned = {name: counts for name, counts in self.learned.items() if name in present}
        self.tokens = {name: count for name, count in self.tokens.items() if name in present}
        self.needs = self.needs_of(workers, now)

    def learn(self, worker: RegisteredWorker, now: float) -> None:
        """Learn from a worker's steps. Prompts count when they are whole: until then their steps are kept for later."""
        name, counts = worker.hello.sender, StepTotals.of(worker)
        self.served.add(now, max(0, counts.tokens - self.tokens.get(name, counts.tokens)))
        self.tokens[name] = counts.tokens
        new = counts.since(self.learned.get(name, counts))
        is_in_prompt = not new.prompt_tokens and bool(worker.uncomputed or worker.others.uncomputed)
        if name not in self.learned or not is_in_prompt:
            self.learned[name] = counts
            self.costs.add(new.steps, new.microseconds * MICROSECOND, new.tokens, new.prompt_tokens)

    def prompt_token(self, workers: Sequence[RegisteredWorker]) -> float | None:
        """Return the seconds of a prompt token in full steps of these workers; None while that is not known."""
        step_tokens = min((worker.hello.max_num_batched_tokens for worker in workers), default=1)
        return self.costs.prompt_token(step_tokens)

    def needs_of(self, workers: Sequence[RegisteredWorker], now: float) -> Needs | None:
        if not workers:
            return None
        prompt_token, rows = self.prompt_token(workers), self.most_rows(workers)
        step = self.costs.step(rows)
        if prompt_token is None or not step:
            return None
        queued, asked, proxies = self.queued(), self.asked, 1 + max(worker.others.proxies for worker in workers)
        asked.expected = self.expected(queued, proxies, now)
        prompts, uncached = asked.prompts.per_second(now), asked.uncached.per_second(now)
        missing = uncached / prompts if prompts else 1.0
        requests = asked.requests.per_second(now)
        prompt = uncached / requests if requests else 0.0
        waiting = proxies * missing * queued.tokens + sum(one.uncomputed + one.others.uncomputed for one in workers)
        # One prompt in each worker is being computed.
        waiting = max(0.0, waiting - prompt * sum(one.role != DECODE for one in workers))
        more = 0.0
        # Requests that give way take what is left, and need nobody.
        if not any(one.seat_counts.lent for one in workers):
            # More than was asked for here: for other routers, and in answers that are longer than expected. What is
            # drawn now was asked for a while ago, and tells nothing of the prompts of now.
            more = max(0.0, self.served.per_second(now) - proxies * asked.lasting_answers.per_second(now))
        # An answer is made up for in no less time than it takes. Rows that run stay where they are, however many.
        waiting_answers = proxies * queued.choices * asked.expected / max(CATCH_UP, asked.expected * step)
        within = max(CATCH_UP, self.limits.first_token or 0.0)
        work = (proxies * uncached + waiting / within) * prompt_token
        tokens = proxies * asked.answers.per_second(now) + waiting_answers
        return Needs(
            work,
            (tokens + more) * step / rows,
            prompt * prompt_token,
            self.limits.first_token,
            max(0.0, 1.0 - self.costs.line[0] / step) if self.helpers else 0.0,
            self.model(workers, work, tokens, prompt_token) if self.limits != NO_LIMITS else None,
        )

    def model(
        self, workers: Sequence[RegisteredWorker], work: float, tokens: float, prompt_token: float
    ) -> GoodputModel | None:
        """Return the model of prompts that are so much work for workers, and answers of so many tokens a second; None
        while nothing was asked lately."""
        mix = RequestMix(self.asked.samples(self.looked or 0.0))
        if not mix.answer:
            return None
        decoding = [one for one in workers if one.role != PREFILL] or workers
        step_tokens = min(worker.hello.max_num_batched_tokens for worker in workers)
        # A prompt goes to a decode worker where prefill workers have so much more to do than that one.
        ahead = mix.prompt * (1.0 - PULLED) + step_tokens
        places = 1.0 + ahead / mix.prompt if self.helpers and mix.prompt else None
        return GoodputModel(
            mix,
            work,
            tokens * mix.behind / mix.answer,
            prompt_token,
            StepLine(*self.costs.line, room(decoding, sum(one.taken + one.others.taken for one in decoding))),
            self.limits.first_token or inf,
            self.limits.per_token or inf,
            places,
        )

    def expected(self, queued: QueuedWork, proxies: int, now: float) -> float:
        """Return the tokens that an answer will have: those of ended ones, or more if so many were drawn since that
        longer ones must be under way (the mean of an exponential distribution from lives of which some have not ended;
        one more is taken to end now)."""
        self.ended.add(now, queued.ended - self.counted)
        self.counted = queued.ended
        if queued.expected is None:
            return EXPECTED
        return max(queued.expected, self.served.left(now) / proxies / (1.0 + self.ended.left(now)))

    def most_rows(self, workers: Sequence[RegisteredWorker]) -> float:
        """Return the rows that a worker may decode at once: those with a seat and KV blocks, which keep the limit."""
        decoding = [one for one in workers if one.role != PREFILL] or workers
        most = FULL * room(decoding, sum(map(rows_of, decoding)))
        limit = self.limits.per_token
        return max(1.0, most if limit is None else self.costs.most_rows(CAREFUL * limit, most))

    def counts(self) -> dict[str, int]:
        """Return how many workers of each role there are that take requests."""
        roles = [worker.role for worker in self.group.available]
        return {role: roles.count(role) for role in (PREFILL, DECODE, MIXED)}

    def wanted(self) -> dict[str, int]:
        """Return how many workers of each role that is there the load needs; as many as there are while that is not
        known."""
        counts, needs = self.counts(), self.needs
        if needs is None:
            return {role: count for role, count in counts.items() if count}
        if not (counts[PREFILL] and counts[DECODE]):
            return {role: needs.wanted_mixed for role, count in counts.items() if count}
        return {PREFILL: needs.wanted_prefill, DECODE: needs.wanted_decode}


def room(workers: Sequence[RegisteredWorker], holders: int) -> float:
    """Return the sequences for which each worker has a seat and KV blocks, as so many now hold those that are used."""
    seats, capacity = float(min(one.seats for one in workers)), sum(one.capacity for one in workers)
    used = capacity - sum(min(one.free_blocks, one.capacity) for one in workers)
    return min(seats, capacity * holders / used / len(workers)) if holders and used > 0 else seats


def rows_of(worker: RegisteredWorker) -> int:
    """Return the sequences that a worker runs, but for those that give way."""
    return min(worker.running, worker.taken + worker.others.taken)
