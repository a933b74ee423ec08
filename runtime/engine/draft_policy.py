# SPDX-License-Identifier: Apache-2.0
"""The decision how many tokens to guess in a step, and by what. Touches no tensor and no clock.

A guess costs a row of the step that verifies it and, if the draft model makes it, a share of a small step before. It
saves the time of a token if it is right. The policy compares the expected tokens per second without guesses, with those
from repeated text, and with the draft model's, from what was measured of both models and of earlier guesses.

An estimate can be wrong, so every guess is paid from an account, in units of a plain step: each step adds a small share
of itself, each token saved what it saved, and all that guesses cost is taken off. Nothing is guessed that the account
cannot pay. So a stream on which no guess is ever right takes at most 1 + SHARE times as long, plus START steps once in
the life of a worker, or what earlier successes have brought, at most CAP.
"""

from collections import abc
from dataclasses import dataclass, field

from pontil.runtime.engine.draft_costs import LinearCost, Rate, depth, gain

# In units of a plain step.
SHARE, START, CAP = 0.02, 8.0, 64.0
# With more than the first in the account, a text is read for guesses that are not expected to help; these are then
# tried until no more than the second is left, so that they come in rows long enough to learn from.
TRY_ABOVE, KEEP = 12.0, 4.0
# The most known tokens that are computed for a sequence when the draft model first follows it: of a longer text the
# last ones, for a guess depends mostly on these, and reading all would cost more than guesses save.
WINDOW = 128
# A plan has to be better by this factor: the estimates are not exact.
MARGIN = 1.02
# The next tokens that have to make up for reading a text into the draft model.
HORIZON = 64
# Most positions that the draft model may lack before it guesses in the same step; more are read in steps before.
READY = 4
# Most positions that are read for all sequences in one step, which hold up all streams.
READ_AT_ONCE = 64


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


@dataclass(slots=True)
class DraftPlan:
    """For each sequence: guesses to take from repeated text, or to have made by the draft model, and positions to read
    into the latter."""

    lookups: list[int]
    models: list[int]
    reads: list[int]

    @classmethod
    def empty(cls, count: int) -> "DraftPlan":
        return cls([0] * count, [0] * count, [0] * count)


@dataclass(slots=True)
class AdaptivePolicy:
    """Plans drafts. `ratio` is the size of the draft model in parts of the target: what a step of it takes before that
    was measured. The costs are those of the `target`, and of the `draft` model. `account` as above."""

    ratio: float
    target: LinearCost = field(default_factory=LinearCost)
    draft: LinearCost = field(default_factory=LinearCost)
    account: float = START
    # Sequences and seconds of the step that is being verified, without its guesses.
    plain: tuple[int, float] = (0, 0.0)

    def plan(self, options: abc.Sequence[Option], room: int) -> DraftPlan:
        """Return the best plan that the account can pay."""
        if not options or room < 1 or not self.target.is_known:
            return DraftPlan.empty(len(options))
        best = DraftPlan.empty(len(options))
        plain = rate = self.rate(options, best)
        # The last pass starts from the rate of the one before: the faster the steps, the fewer guesses pay.
        for with_model in (False, True, True):
            made = self.fill(options, room, with_model, rate)
            found = self.rate(options, made)
            if found > max(rate, plain * MARGIN) and self.can_pay(self.cost(options, made)):
                best, rate = made, found
        if not any(best.models):
            self.try_out(options, best, room)
        self.read(options, best)
        return best

    def fill(self, options: abc.Sequence[Option], room: int, with_model: bool, rate: float) -> DraftPlan:
        """Give every sequence, oldest first, as many guesses as are worth their cost at so many tokens per second, from
        the source that promises more."""
        plan, row = DraftPlan.empty(len(options)), rate * self.target.per_row
        ready = sum(one.is_ready for one in options)
        step = rate * self.draft_seconds(ready) / ready if with_model and ready else 0.0
        for place, one in enumerate(options):
            most = min(one.limit, room)
            looked = depth(one.lookup, row, min(most, one.found))
            made = depth(one.model, row + step, most) if with_model and one.is_ready else 0
            if gain(one.lookup, looked) - looked * row >= gain(one.model, made) - made * (row + step):
                plan.lookups[place] = looked
            else:
                plan.models[place] = made
            room -= max(plan.lookups[place], plan.models[place])
        return plan

    def rate(self, options: abc.Sequence[Option], plan: DraftPlan) -> float:
        """Return the expected tokens per second of a plan."""
        tokens = len(options) + sum(
            gain(one.lookup, looked) + gain(one.model, made)
            for one, looked, made in zip(options, plan.lookups, plan.models, strict=True)
        )
        return tokens / (self.target.seconds(len(options)) + self.cost(options, plan))

    def cost(self, options: abc.Sequence[Option], plan: DraftPlan) -> float:
        """Return the seconds that a plan's guesses add to a step."""
        seconds = self.target.per_row * (sum(plan.lookups) + sum(plan.models))
        first = sum(one.missing or 0 for one, made in zip(options, plan.models, strict=True) if made)
        if first:
            seconds += self.draft_seconds(first)
        for ahead in range(1, max(plan.models, default=0)):
            seconds += self.draft_seconds(sum(made > ahead for made in plan.models))
        return seconds

    def draft_seconds(self, rows: int) -> float:
        return self.draft.seconds(rows) if self.draft.is_known else self.ratio * self.target.seconds(rows)

    def can_pay(self, seconds: float, beyond: float = 0.0) -> bool:
        return self.account - beyond >= seconds / self.target.seconds(1)

    def try_out(self, options: abc.Sequence[Option], plan: DraftPlan, room: int) -> None:
        """Have one guess made that is not expected to help, if there is enough in the account, so that a draft model
        that has become better is noticed."""
        for place, one in enumerate(options):
            if one.is_ready and one.limit and not plan.lookups[place] and sum(plan.lookups) < room:
                plan.models[place] = 1
                if not self.can_pay(self.cost(options, plan), KEEP):
                    plan.models[place] = 0
                return

    def read(self, options: abc.Sequence[Option], plan: DraftPlan) -> None:
        """Have texts read into the draft model that are expected to make up for it, or that the account can pay beyond
        what it needs."""
        pace, room = len(options) / self.target.seconds(len(options)), READ_AT_ONCE
        for place, one in enumerate(options):
            if one.missing is None or one.is_ready or not one.limit or not room:
                continue
            cost = self.draft_seconds(one.missing)
            # A text that was begun goes on: less is asked for the rest of it.
            spare = KEEP + (TRY_ABOVE - KEEP) * one.missing / WINDOW
            if self.can_pay(cost, 0.0 if self.benefit(one, pace) > cost else spare):
                plan.reads[place] = min(one.missing - 1, room)
                room -= plan.reads[place]

    def benefit(self, one: Option, pace: float) -> float:
        """Return the seconds that the draft model is expected to save one sequence."""
        price = pace * (self.target.per_row + self.draft_seconds(1))
        count = depth(one.model, price, one.limit)
        right = gain(one.model, count)
        return (right - count * price) / pace * min(one.left, HORIZON) / (1 + right)

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
            self.book(SHARE * self.plain[1] - self.target.per_row * (rows - sequences) - spent)

    def saved(self, tokens: int) -> None:
        """Take the number of right guesses of one sequence in that step."""
        sequences, seconds = self.plain
        if tokens and sequences:
            self.book(tokens * seconds / sequences)

    def book(self, seconds: float) -> None:
        self.account = min(CAP, self.account + seconds / self.target.seconds(1))


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
        own = self.own.get(owner, {}).get(kind)
        return (own or self.of_all(kind)).share

    def of_all(self, kind: abc.Hashable) -> Rate:
        return self.all.setdefault(kind, Rate(first_share(kind), FIRST_WEIGHT))

    def add(self, owner: abc.Hashable, kind: abc.Hashable, guessed: int, right: int) -> None:
        own = self.own.setdefault(owner, {})
        if kind not in own:
            own[kind] = Rate(self.of_all(kind).share, OWN_WEIGHT)
        own[kind].add(guessed, right)
        self.of_all(kind).add(guessed, right)

    def forget(self, owner: abc.Hashable) -> None:
        self.own.pop(owner, None)


def first_share(kind: abc.Hashable) -> float:
    """Return what is assumed of a kind of guesses: an int is a number of tokens found again."""
    return FIRST_LOOKUPS[kind] if isinstance(kind, int) else FIRST_MODEL
