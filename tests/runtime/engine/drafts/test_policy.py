# SPDX-License-Identifier: Apache-2.0
"""The policy of drafts against simulated models: clocks and chance are made up here, and no time is measured."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import pytest
from effort import by_default, examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pontil.runtime.engine.drafts.costs import gain
from pontil.runtime.engine.drafts.policy import (
    CAP,
    MOST_PAUSE,
    READY,
    SHARE,
    TRIES,
    WINDOW,
    AdaptivePolicy,
    DraftPlan,
    Option,
    SharesRight,
)
from pontil.runtime.worker.start.draft_loading import FIRST_READ

MOST = 8
# Says of the next guess for a stream if it is right.
Behaviour = Callable[["GuessWorld", "GuessedStream"], bool]


@dataclass
class GuessedStream:
    """One answer: the chance that a guess of the draft model is right, and that repeated text is, where it is found."""

    model: float
    lookup: float = 0.0
    found: float = 0.0
    missing: int = 40
    tokens: int = 0
    is_lucky: bool = True


@dataclass
class GuessWorld:
    """Two models with costs in seconds, and a policy that sees only results. The target computes rows in tiles of
    `tile`. Answers end after `length` tokens; others follow, with prompts as long. `behaviour` decides in place of the
    streams' chances."""

    streams: list[GuessedStream]
    base: float = 0.05
    row: float = 0.002
    draft_base: float = 0.015
    draft_row: float = 0.001
    seed: int = 1
    seconds: float = 0.0
    guesses: int = 0
    tile: int = 1
    length: int = 0
    behaviour: Behaviour | None = None
    lowest: float = 0.0
    worst: float = 0.0
    shares: SharesRight = field(default_factory=SharesRight)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.policy = AdaptivePolicy(0.3)

    def target(self, rows: int) -> float:
        return self.base + self.row * self.tile * -(-rows // self.tile)

    @property
    def lost(self) -> float:
        """The seconds beyond 1.03 times those that all tokens would have taken without guesses."""
        made = sum(stream.tokens for stream in self.streams)
        return self.seconds - 1.03 * made / len(self.streams) * self.target(len(self.streams))

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
        self.lowest = min(self.lowest, self.lost)
        self.worst = max(self.worst, self.lost - self.lowest)
        return plan

    def draft_work(self, plan: DraftPlan) -> float:
        spent = 0.0
        for stream, read, window in zip(self.streams, plan.reads, plan.windows, strict=True):
            if window:
                assert window < stream.missing
                stream.missing = window
            if read:
                assert read < stream.missing
                spent += self.draft(read)
                stream.missing -= read
        for ahead in range(max(plan.models)):
            wanted = [stream for stream, made in zip(self.streams, plan.models, strict=True) if made > ahead]
            spent += self.draft(sum(stream.missing for stream in wanted) if ahead == 0 else len(wanted))
        return spent

    def verify(self, place: int, stream: GuessedStream, plan: DraftPlan) -> None:
        made, looked, first = plan.models[place], plan.lookups[place], 40
        share, kind = (stream.model, ("model", 0)) if made else (stream.lookup, 3)
        right = 0
        while right < made + looked and self.is_right(stream, share):
            right += 1
        stream.tokens += 1 + right
        stream.missing = min(WINDOW, (1 + (right == made)) if made else stream.missing + 1 + right)
        if made + looked:
            self.shares.add(place, kind, made + looked, right)
            self.policy.saved(right)
        if not made:
            self.shares.age(place, ("model", 0))
        self.guesses += made + looked
        if self.length and stream.tokens // self.length > (stream.tokens - 1 - right) // self.length:
            self.shares.forget(place)
            stream.missing = min(WINDOW, first)

    def is_right(self, stream: GuessedStream, share: float) -> bool:
        return self.chance.random() < share if self.behaviour is None else self.behaviour(self, stream)

    def run(self, tokens: int) -> float:
        """Run until every stream has so many tokens; return how many times as fast this was as without guesses."""
        while min(stream.tokens for stream in self.streams) < tokens:
            self.step()
        made = sum(stream.tokens for stream in self.streams)
        return made / len(self.streams) * self.target(len(self.streams)) / self.seconds


@pytest.mark.parametrize("seed", range(examples(1, 4)))
@pytest.mark.parametrize("rows", by_default({1, 20}, [1, 2, 8, 20]))
def test_where_no_guess_is_right_little_time_is_lost(rows: int, seed: int) -> None:
    """A stream that never repeats takes at most 3 % longer, reading its prompt into the draft model included."""
    world = GuessWorld([GuessedStream(0.0, found=0.3) for _ in range(rows)], seed=seed)
    assert world.run(2000) > 1 / 1.03


@pytest.mark.parametrize("noise", [0.85, 0.9, 1.0, 1.1, 1.15])
@pytest.mark.parametrize("row", [0.0003, 0.0011, 0.0018, 0.003])
@pytest.mark.parametrize("step", [0.012, 0.016, 0.03])
def test_the_first_text_is_paid_for_whatever_noise_the_first_steps_had(step: float, row: float, noise: float) -> None:
    """A worker that spends more than it has makes no guesses for hundreds of tokens. Two steps that differ by one row
    say nothing of what a row takes, as noise is more than that."""
    world = GuessWorld([GuessedStream(1.0, missing=64)], step - 0.0007, 0.0007, 0.006 - row, row)
    for rows, factor in zip((FIRST_READ, 1), (noise, 2.0 - noise), strict=True):
        world.policy.drafted(rows, factor * (world.draft_base + rows * row))
    assert min(world.policy.account for _ in range(60) if world.step()) >= 0.0


def with_chance(*shares: float, each: int = 250) -> Behaviour:
    """Guesses that are right so often, for so many tokens of the first stream each."""
    return lambda world, stream: world.chance.random() < shares[world.streams[0].tokens // each % len(shares)]


def switching(good: float, bad: float, stay: float) -> Behaviour:
    """Runs of right and of wrong guesses."""

    def is_right(world: GuessWorld, stream: GuessedStream) -> bool:
        stream.is_lucky ^= world.chance.random() > stay
        return world.chance.random() < (good if stream.is_lucky else bad)

    return is_right


def deceiving(full: float, empty: float) -> Behaviour:
    """Guesses that are right until the account is nearly full, and then wrong until it is nearly empty."""

    def is_right(world: GuessWorld, stream: GuessedStream) -> bool:
        if world.policy.account > full * CAP:
            stream.is_lucky = False
        elif world.policy.account < empty * CAP:
            stream.is_lucky = True
        return stream.is_lucky

    return is_right


chances = st.sampled_from([0.0, 1.0]) | st.floats(0, 1)
behaviours = st.one_of(
    st.builds(lambda shares, each: with_chance(*shares, each=each), st.lists(chances, min_size=1), st.integers(1, 400)),
    st.builds(switching, chances, chances, st.floats(0.5, 1)),
    st.builds(deceiving, st.floats(0.2, 1), st.floats(0, 0.5)),
)


@settings(max_examples=examples(3, 300), deadline=None)
@example(
    behaviour=with_chance(1.0, 0.0, each=600),
    base=0.095,
    row=0.003,
    draft=0.029,
    draft_row=0.004,
    rows=1,
    tile=1,
    seed=1,
)
@example(
    behaviour=with_chance(1.0, 1.0, 0.0, each=26), base=0.0625, row=0.0078125, draft=0.0625, draft_row=0.0078125,
    rows=10, tile=16, seed=0,
)  # fmt: skip
@example(
    behaviour=with_chance(1.0, 0.0, 0.6368105301433876, 0.25365113833156855, 1.0, 1.0, each=48),
    base=0.03811596463675506, row=0.004519493794748023, draft=0.00938086647032537, draft_row=0.009972247821797526,
    rows=10, tile=16, seed=22,
)  # fmt: skip
@given(
    behaviours, st.floats(0.01, 0.1), st.floats(0.0001, 0.01), st.floats(0.001, 0.1), st.floats(0.0001, 0.01),
    st.integers(1, 12), st.sampled_from([1, 4, 16]), st.integers(0, 99),
)  # fmt: skip
def test_whatever_is_right_little_is_lost_from_any_moment_on(
    behaviour: Behaviour, base: float, row: float, draft: float, draft_row: float, rows: int, tile: int, seed: int
) -> None:
    """From any step to any later one, and whatever was right before: at most 3 % and CAP steps, and two more for
    estimates that are not exact, as where rows cost by the tile. The costs of both models were measured before."""
    streams = [GuessedStream(0.0, found=0.3) for _ in range(rows)]
    world = GuessWorld(streams, base, row, draft, draft_row, seed, tile=tile, length=200, behaviour=behaviour)
    for count in (1, 2, 8, 32, 64) * 8:
        world.draft(count)
        world.policy.target.add(rows + count - 1, world.target(rows + count - 1))
    for _ in range(40):
        world.policy.target.add(rows, world.target(rows))
    world.run(700)
    assert world.worst <= (CAP + 2) * world.target(rows)


@settings(max_examples=examples(4, 100), deadline=None)
@example(model=0.0, base=0.0625, row=0.015625, draft_base=0.005859375, draft_row=0.0, rows=1, seed=0)
@given(
    st.floats(0, 0.5), st.floats(0.01, 0.1), st.floats(0.0001, 0.02), st.floats(0.005, 0.2), st.floats(0.0, 0.02),
    st.integers(1, 12), st.integers(0, 99),
)  # fmt: skip
def test_before_costs_are_known_the_loss_is_bounded_too(
    model: float, base: float, row: float, draft_base: float, draft_row: float, rows: int, seed: int
) -> None:
    """A text is read once before it is known how long that takes."""
    streams = [GuessedStream(model, found=0.5) for _ in range(rows)]
    world = GuessWorld(streams, base, row, draft_base, draft_row, seed)
    world.run(600)
    plain = sum(stream.tokens for stream in streams) / rows * world.target(rows)
    allowed = SHARE * plain + (CAP + 4) * world.target(rows)
    assert world.seconds <= plain + allowed + draft_base + 128 * draft_row


# The times as many as without guesses that the policy before this one reached, which risked 64 steps: the mean of
# four runs of 2,000 tokens in answers of 160, on prompts of 40, with seconds as in docs/measurements-history.md.
REACHED = {0.964: 1.874, 0.765: 1.282}


@pytest.mark.parametrize("share", REACHED)
def test_a_small_account_hardly_costs_a_good_draft_anything(share: float) -> None:
    """Code and chat as they were measured: at least 93 % of the time that a far larger account saves. Four runs
    differ from forty by 3 %, so that more would say nothing."""
    runs = [
        GuessWorld([GuessedStream(share)], 0.094, 0.003, 0.029, 0.004, seed, length=160).run(2000) for seed in range(4)
    ]
    speed = sum(runs) / len(runs)
    assert 1 - 1 / speed >= 0.93 * (1 - 1 / REACHED[share])


@pytest.mark.parametrize(
    ("bad", "share"), by_default({(160, 0.9), (4000, 0.7)}, product((160, 1500, 4000), (0.7, 0.9)))
)
def test_a_draft_model_that_becomes_better_is_noticed(bad: int, share: float) -> None:
    """After any time within the longest pause and the tokens that pay for a trial; within two of these if one guess in
    three is wrong, for a trial of few guesses may miss it. Then it guesses several at once."""
    for seed in range(2):
        world = GuessWorld([GuessedStream(0.0)], 0.094, 0.003, 0.029, 0.004, seed, length=160)
        world.run(bad)
        world.streams[0].model = share
        begun = world.streams[0].tokens
        while max(world.step().models) < 2:
            assert world.streams[0].tokens - begun < (MOST_PAUSE + 500) * (1 if share > 0.8 else 2)


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


def known(account: float) -> AdaptivePolicy:
    policy = AdaptivePolicy(0.3, account=account)
    for rows in (1, 8, 64):
        policy.target.add(rows, 0.05 + 0.001 * rows)
        policy.draft.add(rows, 0.01 + 0.001 * rows)
    return policy


def test_without_credit_nothing_is_guessed() -> None:
    sure = Option(MOST, 0, 1, 100, 0.0, 1.0)
    assert not any(known(0.0).plan([sure], 31).models)
    assert known(0.3).plan([sure], 31).models == [1], "the last of the account is worth a single guess"
    assert known(1.0).plan([sure], 31).models == [2] and known(CAP).plan([sure], 31).models == [MOST]
    policy = known(CAP)
    policy.stepped(1, 1, None, 1.0)
    assert policy.account == pytest.approx(CAP + SHARE - 1.0 / policy.target.seconds(1))
    policy.saved(1000)
    assert policy.account == CAP


def test_a_text_is_read_only_if_that_pays() -> None:
    long, short = (Option(MOST, 0, 128, left, 0.0, 0.9) for left in (1000, 1))
    made = known(2.5).plan([long], 31)
    assert (made.reads, made.windows) == ([63], [64]), "as much as the account has beside the first guesses"
    made = known(CAP).plan([long], 31)
    assert (made.reads, made.windows) == ([64], [0]), "a longer one in several steps"
    assert known(CAP).plan([short], 31).reads == [0] and known(1.0).plan([long], 31).reads == [0]
    assert known(CAP).plan([Option(MOST, 0, 20, 1000, 0.0, 0.9)], 31).reads == [19]
    assert known(CAP).plan([Option(MOST, 0, None, 1000, 0.0, 0.9)], 31) == DraftPlan.empty(1)
    assert known(CAP).plan([Option(MOST, 0, READY, 1000, 0.0, 0.9)], 31).models[0] > 1


def test_a_trial_reads_little_and_guesses_for_the_stream_that_promises_most() -> None:
    hopeless, better = (Option(MOST, 0, 128, 1000, 0.0, share) for share in (0.01, 0.1))
    policy = known(CAP)
    made = policy.plan([hopeless, better], 31)
    assert made.windows[0] == 0 and 0 < made.windows[1] <= 64 and made.reads == [0, made.windows[1] - 1]
    ready = Option(MOST, 0, 2, 1000, 0.0, 0.1)
    assert [policy.plan([hopeless, ready], 31).models for _ in range(TRIES + 1)] == [[0, 1]] * TRIES + [[0, 0]]
    assert not any(known(1.0).plan([hopeless, ready], 31).models)
