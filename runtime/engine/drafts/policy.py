# SPDX-License-Identifier: Apache-2.0
"""The decision how many tokens to guess in a step, and by what. Touches no tensor and no clock.

A guess costs a row of the step that verifies it and, if the draft model makes it, a share of a small step before. It
saves the time of a token if it is right. The policy compares the expected tokens per second without guesses, with those
from repeated text, and with the draft model's, from what was measured of both models and of earlier guesses.

An estimate can be wrong, so every guess is paid from an account, in units of a plain step: each step adds a small share
of itself, each token saved what it saved, and all that guesses cost is taken off. It never holds more than CAP, and
nothing is guessed that it cannot pay. So from any moment on, whatever was right before, a stream on which no guess is
right takes at most 1 + SHARE times as long and CAP steps more.

Bad luck soon empties so small an account. So a plan stakes a part of it, and guesses less far if there is less. A draft
model that is not expected to help is tried for a few guesses from time to time.
"""

from collections import abc
from dataclasses import dataclass, field

from pontil.runtime.engine.drafts.costs import LinearCost, Rate, StepCost, depth, gain
from pontil.runtime.engine.sequences.draft_state import KEPT_STATES

# In units of a plain step.
SHARE, CAP = 0.02, 4.0
# The part of the account that one plan may spend. A single guess may take all.
STAKE = 0.7
# Of a text that the draft model begins to follow the last so many tokens are read, the most that are worth it and can
# be paid: a guess depends mostly on these, and reading all would cost more than guesses save.
WINDOW = KEPT_STATES
WINDOWS = (WINDOW, 64, 32, 16)
# The most that a text may cost that is read for a trial, in plain steps.
TRIAL_READING = 1.0
# A trial may begin when the account could pay all its guesses, or has so much of the most that it can have.
FULL = 0.9
# A plan has to be better by this factor: the estimates are not exact.
MARGIN = 1.02
# The next tokens that have to make up for reading a text into the draft model.
HORIZON = 64
# Most positions that the draft model may lack before it guesses in the same step; more are read in steps before.
READY = 4
# Most positions that are read for all sequences in one step, which hold up all streams.
READ_AT_ONCE = 64
# The wrong guesses that end a trial.
TRIES = 4
# The shortest and the longest pause, in steps.
FIRST_PAUSE, MOST_PAUSE = 128, 1024


@dataclass(slots=True)
class Trials:
    """Trials of a draft model that is not expected to help: a few guesses in a row from time to time, so that one that
    has become better is noticed. Each trial that fails doubles the pause before the next, one that succeeds halves it.
    No trial begins in the next `rest` steps; the one that goes on has `left` guesses, None if none does."""

    pause: int = FIRST_PAUSE
    rest: int = 0
    left: int | None = None

    def goes_on(self, can_begin: bool, can_go_on: bool) -> bool:
        """Return whether a trial goes on, or begins now. It fails if it has no guess left, or cannot be paid."""
        if self.left is None and not self.rest and can_begin:
            self.left = TRIES
        if self.left is not None and not (self.left and can_go_on):
            self.left, self.rest, self.pause = None, self.pause, min(2 * self.pause, MOST_PAUSE)
        return self.left is not None

    def guess(self) -> None:
        if self.left:
            self.left -= 1

    def right(self) -> None:
        """Take a guess that was right: the trial may have another."""
        if self.left is not None:
            self.left = min(self.left + 1, TRIES)

    def succeed(self) -> None:
        """Take that guesses are expected to help."""
        if self.left is not None:
            self.left, self.pause = None, max(self.pause // 2, FIRST_PAUSE)

    def step(self) -> None:
        self.rest = max(0, self.rest - 1)


@dataclass(frozen=True, slots=True)
class Option:
    """The guesses that one sequence may have: at most `limit`, of which `found` come from repeated text; the draft
    model lacks `missing` positions, or cannot guess (None). `left` tokens may still come. `lookup` and `model` are the
    shares of right guesses expected of both."""

    limit: int
    found: int
    missing: int | None
    left: int
    lookup: float
    model: float

    @property
    def is_ready(self) -> bool:
        return self.missing is not None and self.missing <= READY

    @property
    def can_follow(self) -> bool:
        return self.missing is not None and self.limit > 0


@dataclass(slots=True)
class DraftPlan:
    """For each sequence: guesses to take from repeated text, or to have made by the draft model, and positions to read
    into the latter. Where `windows` is not 0, the draft model is to begin anew with the last so many tokens before."""

    lookups: list[int]
    models: list[int]
    reads: list[int]
    windows: list[int]

    @classmethod
    def empty(cls, count: int) -> "DraftPlan":
        return cls([0] * count, [0] * count, [0] * count, [0] * count)

    def follow(self, place: int, missing: int, window: int, room: int) -> int:
        """Have a text read from its last `window` tokens on, up to the last one, at most `room` positions now. Return
        how many."""
        self.reads[place] = min(window - 1, room)
        self.windows[place] = window if window < missing else 0
        return self.reads[place]


@dataclass(slots=True)
class AdaptivePolicy:
    """Plans drafts. `ratio` is the size of the draft model in parts of the target: what a step of it takes before that
    was measured. The costs are those of the `target`, and of the `draft` model. `account` as above."""

    ratio: float
    target: StepCost = field(default_factory=StepCost)
    draft: LinearCost = field(default_factory=LinearCost)
    account: float = CAP
    trials: Trials = field(default_factory=Trials)
    # Sequences and seconds of the step that is being verified, without its guesses.
    plain: tuple[int, float] = (0, 0.0)

    def plan(self, options: abc.Sequence[Option], room: int) -> DraftPlan:
        """Return the best plan that the account can pay."""
        if not options or room < 1 or not self.target.is_known:
            return DraftPlan.empty(len(options))
        best = self.best(options, room)
        self.read(options, best)
        if any(best.models):
            self.trials.succeed()
        elif not any(best.reads):
            self.try_out(options, best, room)
        return best

    def best(self, options: abc.Sequence[Option], room: int) -> DraftPlan:
        best = DraftPlan.empty(len(options))
        plain = rate = self.rate(options, best)
        # The last pass starts from the rate of the one before: the faster the steps, the fewer guesses pay.
        for with_model in (False, True, True):
            plan, plan_rate = self.payable(options, room, with_model, rate)
            if plan_rate > max(rate, plain * MARGIN):
                best, rate = plan, plan_rate
        return best

    def payable(
        self, options: abc.Sequence[Option], room: int, with_model: bool, rate: float
    ) -> tuple[DraftPlan, float]:
        """Return the best of the plans that `fill` makes and the account can pay, by the most guesses for a sequence,
        and its tokens per second."""
        most, best = max(option.limit for option in options), (DraftPlan.empty(len(options)), 0.0)
        while most:
            plan = self.fill(options, room, with_model, rate, most)
            most = min(most, max(plan.models + plan.lookups))
            if most and self.can_pay(self.cost(options, plan), STAKE if most > 1 else 1.0):
                plan_rate = self.rate(options, plan)
                if plan_rate < best[1]:
                    break
                best = plan, plan_rate
            most = max(0, most - 1)
        return best

    def fill(self, options: abc.Sequence[Option], room: int, with_model: bool, rate: float, longest: int) -> DraftPlan:
        """Give every sequence, oldest first, as many guesses as are worth their cost at so many tokens per second, from
        the source that promises more."""
        plan, row = DraftPlan.empty(len(options)), rate * self.target.per_row
        ready = sum(option.is_ready for option in options)
        step = rate * self.draft_seconds(ready) / ready if with_model and ready else 0.0
        for place, option in enumerate(options):
            most = min(option.limit, room, longest)
            lookup_count = depth(option.lookup, row, min(most, option.found))
            model_count = depth(option.model, row + step, most) if with_model and option.is_ready else 0
            lookup_gain = gain(option.lookup, lookup_count) - lookup_count * row
            model_gain = gain(option.model, model_count) - model_count * (row + step)
            if lookup_gain >= model_gain:
                plan.lookups[place] = lookup_count
            else:
                plan.models[place] = model_count
            room -= max(plan.lookups[place], plan.models[place])
        return plan

    def rate(self, options: abc.Sequence[Option], plan: DraftPlan) -> float:
        """Return the expected tokens per second of a plan."""
        tokens = len(options) + sum(
            gain(option.lookup, lookup_count) + gain(option.model, model_count)
            for option, lookup_count, model_count in zip(options, plan.lookups, plan.models, strict=True)
        )
        return tokens / (self.target.seconds(len(options)) + self.cost(options, plan))

    def cost(self, options: abc.Sequence[Option], plan: DraftPlan) -> float:
        """Return the seconds that a plan's guesses add to a step."""
        seconds = self.target.added(len(options), sum(plan.lookups) + sum(plan.models))
        first = sum(option.missing or 0 for option, count in zip(options, plan.models, strict=True) if count)
        if first:
            seconds += self.draft_seconds(first)
        for ahead in range(1, max(plan.models, default=0)):
            seconds += self.draft_seconds(sum(count > ahead for count in plan.models))
        return seconds

    def draft_seconds(self, rows: int) -> float:
        return self.draft.seconds(rows) if self.draft.is_known else self.ratio * self.target.seconds(rows)

    def can_pay(self, seconds: float, stake: float = 1.0) -> bool:
        return self.account * stake >= seconds / self.target.seconds(1)

    def window(self, missing: int, seconds: float) -> int:
        """Return how many positions of a text to begin with, of which so many are missing, for at most so many
        seconds; 0 where not even the fewest can be read."""
        fits = (min(missing, window) for window in WINDOWS)
        return next((window for window in fits if self.draft_seconds(window) <= seconds), 0)

    def read(self, options: abc.Sequence[Option], plan: DraftPlan) -> None:
        """Have the texts read into the draft model that are expected to make up for it, as far as they do and the
        account can pay beside the first guesses."""
        pace, room = len(options) / self.target.seconds(len(options)), READ_AT_ONCE
        budget = self.account * self.target.seconds(1) - self.cost(options, plan)
        for place, option in enumerate(options):
            if option.is_ready or not option.can_follow:
                continue
            missing = option.missing or 0
            window = self.window(missing, min(budget - TRIES * self.guess(options), self.benefit(option, pace)))
            if window and room:
                budget -= self.draft_seconds(window)
                room -= plan.follow(place, missing, window, room)

    def guess(self, options: abc.Sequence[Option]) -> float:
        """Return the seconds that a single guess of the draft model adds to a step."""
        return self.draft_seconds(1) + self.target.added(len(options), 1)

    def benefit(self, option: Option, pace: float) -> float:
        """Return the seconds that the draft model is expected to save one sequence, whose last token no guess saves."""
        price = pace * (self.target.per_row + self.draft_seconds(1))
        count = depth(option.model, price, option.limit)
        right = gain(option.model, count)
        return (right - count * price) / pace * min(max(0, option.left - 1), HORIZON) / (1 + right)

    def try_out(self, options: abc.Sequence[Option], plan: DraftPlan, room: int) -> None:
        """Have one guess made that is not expected to help, or a text read for that, if a trial is due."""
        place, step = promising(options), self.target.seconds(1)
        if place is None or plan.lookups[place] or sum(plan.lookups) >= room:
            return
        option = options[place]
        missing, guess = option.missing or 0, self.guess(options)
        window = 0 if option.is_ready else self.window(missing, TRIAL_READING * step) or min(missing, WINDOWS[-1])
        reading = self.draft_seconds(missing if option.is_ready else window)
        affordable = self.can_pay(reading + guess)
        can_begin = affordable and self.can_pay(min(reading + TRIES * guess, FULL * self.most * step))
        if not self.trials.goes_on(can_begin, affordable):
            return
        if option.is_ready:
            plan.models[place] = 1
            self.trials.guess()
        else:
            plan.follow(place, missing, window, READ_AT_ONCE)

    def drafted(self, rows: int, seconds: float) -> None:
        """Take the time of a step of the draft model."""
        self.draft.add(rows, seconds)

    def stepped(self, sequences: int, rows: int, seconds: float | None, spent: float) -> None:
        """Take a step in which so many sequences decoded, with so many rows, guesses among them, after so many seconds
        of guessing. The `seconds` of the step are None if it also computed other rows."""
        if seconds is not None:
            self.target.add(rows, seconds)
        if self.target.is_known:
            self.plain = sequences, self.target.seconds(sequences)
            self.book(SHARE * self.plain[1] - self.target.added(sequences, rows - sequences) - spent)
        self.trials.step()

    def saved(self, tokens: int) -> None:
        """Take the number of right guesses of one sequence in that step."""
        sequences, seconds = self.plain
        if tokens and sequences:
            self.book(tokens * seconds / sequences)
            self.trials.right()

    def book(self, seconds: float) -> None:
        self.account = min(self.most, self.account + seconds / self.target.seconds(1))

    @property
    def most(self) -> float:
        """Return the most that the account holds."""
        return CAP * max(1.0, self.plain[1] / self.target.seconds(1))


def promising(options: abc.Sequence[Option]) -> int | None:
    """Return the sequence to try the draft model with, which has tokens left for it: one that can be guessed for at
    once, or else the one that promises most."""
    able = [
        (not option.is_ready, -option.model, option.missing or 0, place)
        for place, option in enumerate(options)
        if option.can_follow and option.left > TRIES
    ]
    return min(able)[-1] if able else None


# The share of right guesses by the number of last tokens that were found again, and of a draft model, and how many
# guesses such an assumption weighs; and how many those of all sequences weigh for a new one.
FIRST_LOOKUPS, FIRST_MODEL = (0.1, 0.2, 0.5, 0.7), 0.7
FIRST_WEIGHT, OWN_WEIGHT = 8.0, 4.0


class SharesRight:
    """The share of right guesses by what made them: those of all sequences, from which each sequence starts with its
    own."""

    def __init__(self) -> None:
        self.all: dict[abc.Hashable, Rate] = {}
        self.own: dict[abc.Hashable, dict[abc.Hashable, Rate]] = {}

    def expected(self, owner: abc.Hashable, kind: abc.Hashable) -> float:
        owner_rate = self.own.get(owner, {}).get(kind)
        return (owner_rate or self.of_all(kind)).share

    def of_all(self, kind: abc.Hashable) -> Rate:
        return self.all.setdefault(kind, Rate(first_share(kind), FIRST_WEIGHT))

    def add(self, owner: abc.Hashable, kind: abc.Hashable, guessed: int, right: int) -> None:
        owner_rates = self.own.setdefault(owner, {})
        if kind not in owner_rates:
            owner_rates[kind] = Rate(self.of_all(kind).share, OWN_WEIGHT)
        owner_rates[kind].add(guessed, right)
        self.of_all(kind).add(guessed, right)

    def age(self, owner: abc.Hashable, kind: abc.Hashable) -> None:
        """Take a token for which nothing was guessed: what was known counts a little less."""
        for rate in (self.all.get(kind), self.own.get(owner, {}).get(kind)):
            if rate is not None:
                rate.age()

    def forget(self, owner: abc.Hashable) -> None:
        self.own.pop(owner, None)


def first_share(kind: abc.Hashable) -> float:
    """Return what is assumed of a kind of guesses: an int is a number of tokens found again."""
    return FIRST_LOOKUPS[kind] if isinstance(kind, int) else FIRST_MODEL
