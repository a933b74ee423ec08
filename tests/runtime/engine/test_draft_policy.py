# SPDX-License-Identifier: Apache-2.0
"""The policy of drafts against simulated models: clocks and chance are made up here, and no time is measured."""

import random
from dataclasses import dataclass, field

import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pontil.runtime.engine.draft_costs import LinearCost, Rate, depth, gain
from pontil.runtime.engine.draft_policy import (
    CAP,
    READY,
    SHARE,
    START,
    WINDOW,
    AdaptivePolicy,
    DraftPlan,
    Option,
    SharesRight,
)

MOST = 8


@dataclass
class GuessedStream:
    """One answer: the chance that a guess of the draft model is right, and that repeated text is, where it is found."""

    model: float
    lookup: float = 0.0
    found: float = 0.0
    missing: int = 40
    tokens: int = 0


@dataclass
class GuessWorld:
    """Two models with linear costs in seconds, and a policy that sees only results."""

    streams: list[GuessedStream]
    base: float = 0.05
    row: float = 0.002
    draft_base: float = 0.015
    draft_row: float = 0.001
    seed: int = 1
    seconds: float = 0.0
    guesses: int = 0
    shares: SharesRight = field(default_factory=SharesRight)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.policy = AdaptivePolicy(0.3)

    def target(self, rows: int) -> float:
        return self.base + self.row * rows

    def draft(self, rows: int) -> float:
        taken = self.draft_base + self.draft_row * rows
        self.policy.drafted(rows, taken)
        return taken

    def option(self, place: int, stream: GuessedStream, found: bool) -> Option:
        lookup = self.shares.expected(place, 3) if found else 0.0
        return Option(
            MOST, MOST if found else 0, stream.missing, 1000, lookup, self.shares.expected(place, ("model", 0))
        )

    def step(self) -> DraftPlan:
        """Run one step: plan, guess, verify, and tell the policy."""
        finds = [self.chance.random() < stream.found for stream in self.streams]
        options = [self.option(*each, found) for each, found in zip(enumerate(self.streams), finds, strict=True)]
        plan = self.policy.plan(options, 32 - len(self.streams))
        assert all(made <= MOST for made in plan.models + plan.lookups)
        spent = self.draft_work(plan)
        rows = len(self.streams) + sum(plan.models) + sum(plan.lookups)
        assert rows <= max(32, len(self.streams))
        self.policy.stepped(len(self.streams), rows, self.target(rows), spent)
        self.seconds += spent + self.target(rows)
        for place, stream in enumerate(self.streams):
            self.verify(place, stream, plan)
        return plan

    def draft_work(self, plan: DraftPlan) -> float:
        spent = 0.0
        for stream, read in zip(self.streams, plan.reads, strict=True):
            if read:
                assert read < stream.missing
                spent += self.draft(read)
                stream.missing -= read
        for ahead in range(max(plan.models)):
            wanted = [stream for stream, made in zip(self.streams, plan.models, strict=True) if made > ahead]
            spent += self.draft(sum(stream.missing for stream in wanted) if ahead == 0 else len(wanted))
        return spent

    def verify(self, place: int, stream: GuessedStream, plan: DraftPlan) -> None:
        made, looked = plan.models[place], plan.lookups[place]
        share, kind = (stream.model, ("model", 0)) if made else (stream.lookup, 3)
        right = 0
        while right < made + looked and self.chance.random() < share:
            right += 1
        stream.tokens += 1 + right
        stream.missing = min(WINDOW, (1 + (right == made)) if made else stream.missing + 1 + right)
        if made + looked:
            self.shares.add(place, kind, made + looked, right)
            self.policy.saved(right)
        self.guesses += made + looked

    def run(self, tokens: int) -> float:
        """Run until every stream has so many tokens; return how many times as fast this was as without guesses."""
        while min(stream.tokens for stream in self.streams) < tokens:
            self.step()
        made = sum(stream.tokens for stream in self.streams)
        return made / len(self.streams) * self.target(len(self.streams)) / self.seconds


@pytest.mark.parametrize("seed", range(examples(2, 4)))
@pytest.mark.parametrize("rows", [1, 2, 8, 20])
def test_where_no_guess_is_right_little_time_is_lost(rows: int, seed: int) -> None:
    """A stream that never repeats takes at most 3 % longer, reading its prompt into the draft model included."""
    world = GuessWorld([GuessedStream(0.0, found=0.3) for _ in range(rows)], seed=seed)
    assert world.run(2000) > 1 / 1.03


@settings(max_examples=examples(12, 100), deadline=None)
@example(model=0.0, base=0.0625, row=0.015625, draft_base=0.005859375, draft_row=0.0, rows=1, seed=0)
@given(
    st.floats(0, 0.5), st.floats(0.01, 0.1), st.floats(0.0001, 0.02), st.floats(0.005, 0.2), st.floats(0.0, 0.02),
    st.integers(1, 12), st.integers(0, 99),
)  # fmt: skip
def test_whatever_the_costs_are_the_loss_is_bounded(
    model: float, base: float, row: float, draft_base: float, draft_row: float, rows: int, seed: int
) -> None:
    """The account is all that can be lost: a share of each step, and what was there at the start."""
    streams = [GuessedStream(model, found=0.5) for _ in range(rows)]
    world = GuessWorld(streams, base, row, draft_base, draft_row, seed)
    world.run(600)
    plain = sum(stream.tokens for stream in streams) / rows * world.target(rows)
    # A step's costs are booked after it was planned, and rows by what they were first assumed to take: estimates that
    # are wrong cost a few steps more.
    allowed = SHARE * plain + (START + 4) * world.target(1)
    assert world.seconds <= plain + allowed + 4 * MOST * (draft_base + 128 * draft_row)


@pytest.mark.parametrize(("share", "least"), [(0.8, 1.25), (0.95, 1.6)])
def test_a_draft_model_that_is_often_right_pays(share: float, least: float) -> None:
    world = GuessWorld([GuessedStream(share)])
    assert world.run(2000) > least
    best = max((1 + gain(share, k)) * 0.052 / (0.05 + 0.002 * (1 + k) + 0.016 * k) for k in range(1, MOST + 1))
    assert GuessWorld([GuessedStream(share)]).run(2000) > 0.9 * best, "near to what the costs allow"


def test_repeated_text_is_preferred_where_it_is_found() -> None:
    """It costs no step of the draft model."""
    world = GuessWorld([GuessedStream(0.8, lookup=0.9, found=0.5)])
    alone = GuessWorld([GuessedStream(0.8)])
    assert world.run(2000) > alone.run(2000) * 1.1


def test_with_many_rows_nothing_is_guessed() -> None:
    world = GuessWorld([GuessedStream(1.0, lookup=1.0, found=1.0) for _ in range(32)])
    world.run(50)
    assert world.guesses == 0
    busy = GuessWorld([GuessedStream(0.8) for _ in range(24)], row=0.02)
    busy.run(200)
    assert busy.guesses < 24 * 200 * 0.1, "nor where rows cost as much as steps"


def test_a_stream_that_becomes_predictable_is_noticed() -> None:
    world = GuessWorld([GuessedStream(0.0)])
    world.run(1500)
    world.streams[0].model = 0.9
    before, tokens = world.seconds, world.streams[0].tokens
    world.run(tokens + 4000)
    assert (world.streams[0].tokens - tokens) * 0.052 / (world.seconds - before) > 1.15


def test_before_anything_was_measured_nothing_is_guessed() -> None:
    policy = AdaptivePolicy(0.3)
    plan = policy.plan([Option(MOST, MOST, 1, 100, 0.9, 0.9)], 31)
    assert plan == DraftPlan.empty(1)
    policy.stepped(1, 1, 0.05, 0.0)
    assert any(policy.plan([Option(MOST, MOST, 1, 100, 0.9, 0.9)], 31).lookups)
    assert policy.plan([], 31) == DraftPlan.empty(0)


def test_without_credit_nothing_is_guessed() -> None:
    policy = AdaptivePolicy(0.3, account=0.0)
    policy.target.add(1, 0.05)
    sure = Option(MOST, 0, 1, 100, 0.0, 1.0)
    assert not any(policy.plan([sure], 31).models)
    policy.account = CAP
    assert any(policy.plan([sure], 31).models)
    policy.stepped(1, 1, None, 1.0)
    assert policy.account == pytest.approx(CAP + SHARE - 20)


def test_a_text_is_read_only_if_that_pays() -> None:
    policy = AdaptivePolicy(0.3, account=CAP)
    for rows in (1, 8):
        policy.target.add(rows, 0.05 + 0.001 * rows)
        policy.draft.add(rows, 0.01 + 0.002 * rows)
    long, short = (Option(MOST, 0, 100, left, 0.0, 0.9) for left in (1000, 3))
    policy.account = 6.0
    assert policy.plan([long], 31).reads == [64] and policy.plan([short], 31).reads == [0]
    assert policy.plan([Option(MOST, 0, None, 1000, 0.0, 0.9)], 31) == DraftPlan.empty(1)
    assert policy.plan([Option(MOST, 0, READY, 1000, 0.0, 0.9)], 31).models[0] > 1


def test_a_line_is_found_from_its_points() -> None:
    cost = LinearCost()
    cost.add(1, 0.05)
    assert cost.seconds(1) == pytest.approx(0.05) and 0 < cost.per_row < 0.05
    for rows in [1, 4, 9] * 30:
        cost.add(rows, 0.04 + 0.003 * rows)
    assert cost.seconds(6) == pytest.approx(0.058, rel=0.02)
    before = cost.seconds(1)
    cost.add(1, 50.0)
    assert cost.seconds(1) < 1.5 * before, "one disturbed step is no measure"


def test_rates_follow_what_happens() -> None:
    rate = Rate(0.7, 8)
    for _ in range(200):
        rate.add(4, 0)
    assert rate.share < 0.05
    for _ in range(60):
        rate.add(4, 4)
    assert rate.share > 0.9
    shares = SharesRight()
    shares.add("a", 3, 8, 0)
    assert shares.expected("a", 3) < shares.expected("b", 3) < SharesRight().expected("b", 3)
    shares.forget("a")
    assert shares.expected("a", 3) == shares.expected("b", 3)


def test_what_a_guess_is_worth() -> None:
    assert gain(1.0, 5) == 5 and gain(0.5, 2) == 0.75 and gain(0.3, 0) == 0
    assert depth(0.5, 0.2, 9) == 2 and depth(0.5, 0.6, 9) == 0 and depth(1.0, 0.9, 3) == 3
