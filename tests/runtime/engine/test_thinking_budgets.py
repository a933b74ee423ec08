# SPDX-License-Identifier: Apache-2.0
"""Reasoning ends with its budget, by the marker's own tokens, in any batch and however the tokens came."""

import random
from dataclasses import dataclass
from typing import Any

import pytest
from effort import by_default, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from late_runner import make_late
from rule_guide import Rule, every_third
from tiny import VOCAB, Rig, build, check_free, name_of, reference, rig, sequence

from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.sequences.thinking_budget import ThinkingBudget
from pontil.runtime.models.model import Model

OPEN, CLOSE = 50, (60, 61)
WIDTH = 4 * -(-VOCAB // 32)
PROMPT = [5, 6, 7, 8, 9] * 4


@dataclass
class Marks:
    """Reasoning between OPEN and CLOSE, as often as they come; after the first if it is `once`."""

    inside: bool
    once: bool = True
    over: bool = False
    last: int = -1

    def feed(self, token_id: int) -> None:
        if self.inside and (self.last, token_id) == CLOSE:
            self.inside, self.over = False, self.once
        elif not self.over and token_id == OPEN:
            self.inside = True
        self.last = token_id


def budget(most: int, inside: bool = True, once: bool = True) -> ThinkingBudget:
    return ThinkingBudget(most, CLOSE, WIDTH, lambda: Marks(inside, once))


def thoughts(output: list[int], thinking: ThinkingBudget) -> list[int]:
    """The number of tokens of each piece of reasoning, without its markers where the budget spelled them."""
    marks = thinking.make_watch()
    found = [0] if marks.inside else []
    for token in output:
        was = marks.inside
        marks.feed(token)
        if marks.inside and not was:
            found.append(0)
        elif marks.inside:
            found[-1] += 1
        elif was:
            # The first token of a marker is known to be one by the second.
            found[-1] -= len(CLOSE) - 1
    return found


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.2, "logprobs": 2},
    {"temperature": 1.0, "n": 3},
    {"presence_penalty": 0.5, "temperature": 0.7},
    {"temperature": 1.0, "min_tokens": 9, "bad_token_ids": (9,)},
    {"temperature": 1.5, "logit_bias": ((60, 5.0), (OPEN, 6.0))},
)


def limited(kind: int, most: int, inside: bool = True, once: bool = True, guided: bool = False) -> Sequence:
    one = sequence(f"k{kind}m{most}", PROMPT[: 9 + kind], 20, seed=kind, **KINDS[kind])
    one.rules.thinking = budget(most, inside, once)
    if guided:
        one.rules.make_guide = lambda: Rule(lambda output: every_third(output) | {*CLOSE})
    return one


def requests() -> list[Sequence]:
    made = [limited(kind, 3 * kind, guided=kind % 2 == 1) for kind in range(len(KINDS))]
    return [*made, limited(5, 4, inside=False, once=False), limited(2, 40)]


def run(one: Rig, sequences: list[Sequence]) -> dict[str, list[int]]:
    for each in sequences:
        one.engine.add(each)
    found: dict[str, list[int]] = {}
    while one.engine.has_work:
        found |= {name_of(output.sequence): output.sequence.output for output in one.engine.step()}
    check_free(one)
    return found


def test_alone_together_with_drafts_late_and_replayed_they_say_the_same(model: Model) -> None:  # C16
    expected = run(rig(model), requests())
    for number, each in enumerate(requests()):
        found = {name: output for name, output in expected.items() if name.partition("/")[0] == each.id}
        thinking = each.rules.thinking
        assert found and thinking is not None
        for output in found.values():
            assert sum(thoughts(output, thinking)) <= thinking.most
        if number % 3 == 0:
            assert run(rig(model), [each]) == found
    forced = expected["k1m3"]
    assert forced[3:5] == [*CLOSE] and len(forced) == 20, "the answer follows"
    assert not {60, 61} & set(expected["k2m40/0"]), "a budget that is not used up forces nothing"
    guessing = rig(model, drafts=4)
    assert run(guessing, requests()) == expected
    tight = rig(model, blocks=9, drafts=4)
    assert run(tight, requests()) == expected and tight.scheduler.preemptions > 0
    # Without grammars and penalties, which always wait, steps overlap up to the budget's end.
    for some in (requests(), [one for one in requests() if one.rules.make_guide is None and not one.params.penalizes]):
        late = rig(model)
        make_late(late.engine)
        found = run(late, some)
        assert found and found == {name: expected[name] for name in found}


@pytest.mark.parametrize("kind", by_default([1, 2], range(len(KINDS))))
def test_whoever_goes_on_with_the_tokens_says_the_rest(model: Model, kind: int) -> None:  # C16
    """Continue as after a handoff or a crash behind any token: only tokens are handed on."""
    found = run(rig(model), [limited(kind, 6)])
    output = next(iter(found.values()))
    cuts = (1, 5, 6, 7, 8, 15)
    heirs = {cut: limited(kind, 6) for cut in cuts}
    heir = rig(model, budget=64)
    for cut, one in heirs.items():
        one.id = f"cut{cut}"
        one.branch.wanted = (0,)
        heir.engine.add(one, [Known(0, output[:cut], cut)])
    while heir.engine.has_work:
        heir.engine.step()
    assert [one.output for one in heirs.values()] == [output] * len(cuts)


@given(
    st.lists(st.sampled_from([OPEN, 60, 61, 7, 8]), max_size=24),
    st.integers(0, 6),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1 << 30),
)
@settings(max_examples=examples(60, 2000), deadline=None)
def test_a_mask_is_a_function_of_the_output(tokens: list[int], most: int, inside: bool, once: bool, seed: int) -> None:
    """However the tokens came: one by one, in pieces, or all at once to another that never saw their beginning."""
    steady, dice = budget(most, inside, once), random.Random(seed)
    for count in range(len(tokens) + 1):
        if dice.random() < 0.6:
            fresh = budget(most, inside, once)
            drafts = tokens[count : count + dice.randrange(4)]
            masks = steady.narrowed([None] * (1 + len(drafts)), tokens[:count])
            assert masks[0] == fresh.narrowed([None], tokens[:count])[0]
            for ahead, mask in enumerate(masks[1:], 1):
                exact = fresh.narrowed([None], tokens[: count + ahead])[0]
                assert mask in (exact, bytes(WIDTH)), "behind drafts a mask is right, or empty"
            fitting = steady.fitting(tokens[:count], len(drafts))
            assert all(mask is None for mask in masks[: 1 + fitting]) or fitting == 0


def test_a_marker_yields_to_a_grammar_that_forbids_it(model: Model) -> None:
    one = sequence("a", PROMPT, 6)
    one.rules.thinking = budget(2)
    one.rules.make_guide = lambda: Rule(lambda output: {30 + len(output)})
    assert run(rig(model), [one])["a"] == [30, 31, 32, 33, 34, 35]


def test_only_draws_that_a_budget_may_force_wait_for_tokens() -> None:
    one = sequence("a", PROMPT, 12)
    one.rules.thinking = budget(3)
    assert [one.rules.needs([7], ahead) for ahead in (0, 1, 2, 3)] == [False, False, True, True]
    assert not one.rules.needs([7, *CLOSE], 8)
    assert one.rules.masks([7, *CLOSE], ()) == [None] and one.rules.thinking is None, "nothing is left to be ended"
