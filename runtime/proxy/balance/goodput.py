# SPDX-License-Identifier: Apache-2.0
"""The share of requests that would keep their limits on a split of workers: a pure function of what is asked and what
steps cost. It is coarse, and takes the same time whatever is asked.

A request is late for one of four causes. Its prompt waits for longer than the limit to the first token leaves. Its rows
share their steps with more others than the limit per token leaves room for. It joins a worker that is busy: what was
computed elsewhere has its first row a step or two later, which short answers notice. Or a prompt is computed between
its tokens, as prefill workers had too much to do (runtime/proxy/routing/policy.py, `relieving`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import erf, exp, inf, pow, sqrt

# Steps from the end of a prompt to its first row, beyond the one that this row takes, on a worker that is busy: the
# handoff is read between two steps, and what it pulls is there at the end of the next one.
JOINING = 1.5
HALF = 0.5
# Prompts between the tokens of an answer that are told apart. With more the limit is missed, or prompts are short.
MOST_PROMPTS = 4
# The most of a worker's time that prompts take, so that a load without bound has a place to go.
MOST_BUSY = 0.95
# The part of its time that a queue is busy with which it waits for longest.
LONGEST_BUSY = 0.99
# The part of its time that a worker may compute prompts where all that come have to wait for it.
FULL = 0.85
# Rows in so many times the room are too many, however many more there are.
MANY = 4.0
# The fewest rows whose coming and going is told.
FEWEST_ROWS = 0.3


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """A request of late, that counts by its `weight`: tokens of its prompt that have to be computed, and of its
    answer."""

    weight: float
    prompt: float
    answer: float


@dataclass(frozen=True, slots=True)
class RequestMix:
    """Requests of late, with their means by weight; zeros where there are none."""

    requests: Sequence[AskedRequest]

    def mean(self, value: Callable[[AskedRequest], float]) -> float:
        total = sum(one.weight for one in self.requests)
        return sum(one.weight * value(one) for one in self.requests) / total if total else 0.0

    @property
    def prompt(self) -> float:
        """The tokens of a prompt."""
        return self.mean(lambda one: one.prompt)

    @property
    def answer(self) -> float:
        """The tokens of an answer."""
        return self.mean(lambda one: one.answer)

    @property
    def behind(self) -> float:
        """The tokens of an answer behind the first one, which a prompt's step draws."""
        return self.mean(lambda one: max(0.0, one.answer - 1.0))


@dataclass(frozen=True, slots=True)
class StepLine:
    """The seconds of a step without rows and of each row, and the most rows."""

    base: float
    row: float
    most_rows: float

    def rows(self, tokens: float, free: float) -> float:
        """Return the rows at which so many tokens a second are drawn in so much of the time: those of a straight
        line, or many times as many as there can be."""
        left, most = free - tokens * self.row, MANY * self.most_rows
        return min(most, tokens * self.base / left) if left > 0.0 else most


@dataclass(frozen=True, slots=True)
class GoodputModel:
    """The model of a load: a `mix` of requests, the work of their prompts in workers, that of answers in `tokens` a
    second behind the first one, the seconds of a prompt token and of steps, and the limits in seconds (inf: none). A
    prefill worker has `places` for prompts, of which further ones are computed on decode workers; None: all wait."""

    mix: RequestMix
    prompts: float
    tokens: float
    prompt_token: float
    step: StepLine
    first_token: float = inf
    per_token: float = inf
    places: float | None = None

    def share(self, prefill: int, decode: int) -> float:
        """Return the share of requests that keep both limits on a split, from 0 to 1."""
        beside = 0.0 if self.places is None else blocked(self.prompts, prefill, prefill * self.places)
        prompt = self.prompt_token * self.mix.prompt
        rows = WorkerRows.of(self, prompt, beside, decode)
        # Where decode workers help, no prompt waits for more others than a prefill worker has places for.
        full, longest = (FULL, inf) if self.places is None else (1.0, (self.places - 1.0) * prompt)
        pairs = Waits.of(self.prompts * (1.0 - beside), prefill, prompt, full, longest)
        # Prompts of decode workers wait for one another.
        others = Waits.of(self.prompts * beside, decode, prompt)

        def kept(one: AskedRequest) -> float:
            left = self.first_token - one.prompt * self.prompt_token
            pair = pairs.within(left) * rows.keeping(one.answer, self.per_token, joins=True)
            alone = others.within(left) * rows.keeping(one.answer, self.per_token, joins=False) if beside else 0.0
            return (1.0 - beside) * pair + beside * alone

        return self.mix.mean(kept)


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of a queue: the part of prompts that is served, the part of these that waits, and the mean and the
    longest wait of those in seconds."""

    served: float
    part: float
    mean: float
    longest: float = inf

    @classmethod
    def of(cls, work: float, workers: int, prompt: float, full: float = 1.0, longest: float = inf) -> "Waits":
        """Return those of prompts of so many seconds, that are so much work for so many workers, which can be busy for
        this part of their time: waits are about exponential, and half as long as with service times that are."""
        busy = min(LONGEST_BUSY, work / workers)
        served = min(1.0, full * workers / work) if work else 1.0
        return cls(served, busy, prompt / (2.0 * workers * (1.0 - busy)), longest)

    def within(self, seconds: float) -> float:
        """Return the part of prompts that is served after no longer a wait."""
        if seconds < 0.0:
            return 0.0
        if seconds >= self.longest:
            return self.served
        return self.served * (1.0 - (self.part * exp(-seconds / self.mean) if self.mean else 0.0))


@dataclass(frozen=True, slots=True)
class WorkerRows:
    """A decode worker: its `rows` on average, and the prompts that it begins in a second, each of so many seconds. It
    has room for `most` rows, beside prompts that are computed for it elsewhere. With the chance `busy` no worker is
    idle: only then does a request, which goes to the one with fewest, find others."""

    step: StepLine
    rows: float
    most: float
    prompts: float
    prompt: float
    busy: float = 1.0

    @classmethod
    def of(cls, model: GoodputModel, prompt: float, beside: float, workers: int) -> "WorkerRows":
        """Return it, of so many that share the part `beside` of prompts of so many seconds."""
        work = model.prompts * beside / workers
        computing = min(MOST_BUSY, work)
        rows = model.step.rows(model.tokens / workers, 1.0 - computing)
        most = model.step.most_rows - model.prompts * (1.0 - beside) / workers
        busy = at_least(workers, workers * (rows + computing))
        return cls(model.step, rows, most, work / prompt if prompt else 0.0, prompt, busy)

    def keeping(self, answer: float, limit: float, *, joins: bool) -> float:
        """Return the part of answers of so many tokens that keeps the limit for each behind the first; they join a
        worker that may be busy, or begin behind their own prompt."""
        tokens = max(1.0, answer - 1.0)
        if answer <= 1.0:
            return 1.0
        if limit == inf:
            return self.fitting(tokens, limit, 0.0)
        step = self.step.base + self.step.row * (self.rows + 1.0)
        # Of a prompt that was begun before the answer half is left. One that finds an idle worker is between no tokens.
        expected = self.busy * self.prompts * (tokens * step + HALF * self.prompt)
        chance, late, busy = exp(-expected), JOINING * step, self.busy
        kept = 0.0
        for count in range(MOST_PROMPTS):
            between = count * self.prompt
            fits = self.fitting(tokens, limit, between)
            kept += chance * (busy * self.fitting(tokens, limit, between + late) + (1 - busy) * fits if joins else fits)
            chance *= expected / (count + 1)
        return kept

    def fitting(self, tokens: float, limit: float, between: float) -> float:
        """Return the chance that so many steps, and so many seconds between them, keep the limit beside the others, and
        that there is room: rows come and go like arrivals, which are about normal."""
        left = limit - between / tokens - self.step.base
        most = min(self.most, left / self.step.row if self.step.row else inf)
        if left < 0.0 or most < 1.0:
            return 0.0
        return normal((most - self.rows - 0.5) / sqrt(max(FEWEST_ROWS, self.rows)))


def normal(deviations: float) -> float:
    """Return the part of a normal distribution below so many standard deviations."""
    return 0.5 * (1.0 + erf(deviations / sqrt(2.0)))


def at_least(count: int, mean: float) -> float:
    """Return the chance that as many are there, of a number that is so many on average and comes and goes like
    arrivals (Poisson)."""
    chance = below = exp(-mean)
    for one in range(1, count):
        chance *= mean / one
        below += chance
    return max(0.0, 1.0 - below)


def blocked(work: float, workers: int, places: float) -> float:
    """Return the part of arrivals that finds all places of a queue taken, at least those of the workers (M/M/c/K). So
    many workers' own are Erlang's loss, and each further one has rho times the chance of the one before it."""
    loss, waiting, rho = 1.0, places - workers, work / workers
    for count in range(1, workers + 1):
        loss = work * loss / (count + work * loss)
    if rho <= 1.0:
        return loss * pow(rho, waiting) / (1.0 + loss * rho * powers(rho, waiting))
    # The same, divided by the last power: none is too large.
    return loss / (pow(rho, -waiting) + loss * powers(1.0 / rho, waiting))


def powers(ratio: float, count: float) -> float:
    """Return the sum of so many powers of a ratio of at most 1, from the 0th on."""
    return (1.0 - pow(ratio, count)) / (1.0 - ratio) if ratio < 1.0 else count
