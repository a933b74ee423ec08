# SPDX-License-Identifier: Apache-2.0
"""A sequence's output follows its guide exactly, in any batch and however its tokens came."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_guide import END, Allowed, Rule, every_third
from tiny import VOCAB, Rig, build, check_free, name_of, reference, rig, sequence

from pontil.runtime.engine.engine import Output
from pontil.runtime.engine.sampling.logit_entries import CONTRADICTION
from pontil.runtime.engine.sampling.sampler import sample_rows
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.sequence import FinishReason, Purpose, Sequence
from pontil.runtime.models.model import Model

REPEATING = [5, 6, 7, 8, 9] * 6
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"logprobs": 3},
    {"temperature": 0.9},
    {"temperature": 1.0, "top_k": 5, "logit_bias": ((11, 2.0),)},
    {"min_tokens": 9},
    {"temperature": 1.0, "logit_bias": ((END, 60.0),)},
    {"presence_penalty": 0.5},
    {"temperature": 0.8, "n": 3, "logprobs": 2},
)


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


def guided(name: str, allowed: Allowed = every_third, prompt: list[int] = REPEATING, **params: Any) -> Sequence:
    one = sequence(name, prompt, **({"max_tokens": 24, "ignore_eos": False} | params))
    one.stop_token_ids = frozenset({END})
    one.rules.make_guide = lambda: Rule(allowed)
    return one


def requests() -> list[Sequence]:
    return [
        guided(f"n{number}", prompt=REPEATING[: 9 + number], seed=number, **kind) for number, kind in enumerate(KINDS)
    ]


def run(one: Rig, sequences: Iterable[Sequence]) -> dict[str, tuple[list[int], FinishReason | None, str | None]]:
    """The text of each choice, how it ended and why."""
    last: dict[str, Output] = {}
    for each in sequences:
        one.engine.add(each)
    while one.engine.has_work:
        last |= {name_of(output.sequence): output for output in one.engine.step()}
    check_free(one)
    return {name: (one.sequence.output, one.finish, one.failure) for name, one in last.items()}


def follows(output: list[int], allowed: Allowed = every_third) -> bool:
    return all(token in allowed(output[:place]) for place, token in enumerate(output))


def test_alone_together_with_drafts_and_replayed_they_say_the_same(model: Model) -> None:  # C16
    expected = run(rig(model), requests())
    assert len(expected) == len(KINDS) + 2
    for output, finish, failure in expected.values():
        assert follows(output) and failure is None
        assert finish is (FinishReason.STOP if output[-1] == END else FinishReason.LENGTH)
    assert {finish for _, finish, _ in expected.values()} == {FinishReason.STOP, FinishReason.LENGTH}
    for each in requests():
        found = run(rig(model), [each])
        assert found == {name: one for name, one in expected.items() if name in found}
    guessing = rig(model, drafts=4)
    assert run(guessing, requests()) == expected
    tight = rig(model, blocks=10, drafts=4)
    assert run(tight, requests()) == expected and tight.scheduler.preemptions > 0


def test_drafts_are_those_that_the_guide_allows(model: Model) -> None:
    """Guesses are right where the grammar makes a text repeat itself."""

    def repeats(output: list[int]) -> set[int]:
        return {40 + len(output) % 4, 60 + len(output) % 4}

    guessing = rig(model, drafts=6)
    assert run(guessing, [guided("a", repeats, max_tokens=40)]) == run(
        rig(model), [guided("a", repeats, max_tokens=40)]
    )
    assert guessing.engine.accepted > 10
    one = guided("b", every_third)
    one.output += [4, 9, 40]
    one.drafting.handed = (END, 5)
    assert one.draft(2) == ()


@pytest.mark.parametrize("cut", [1, 2, 11])
def test_whoever_goes_on_with_the_tokens_says_the_rest(model: Model, cut: int) -> None:  # C16
    """Continue as after a handoff or a crash: only tokens are handed on."""
    ((name, (output, _, _)),) = run(rig(model), [guided("a", temperature=0.7, min_tokens=20)]).items()
    second = guided(name, temperature=0.7, min_tokens=20)
    heir = rig(model, budget=7)
    heir.engine.add(second, [Known(0, output[:cut], cut)])
    while heir.engine.has_work:
        heir.engine.step()
    assert second.output == output


def test_a_dead_end_ends_its_own_choice_only(model: Model) -> None:
    def dead_end(output: list[int]) -> set[int]:
        return every_third(output) - {END} if len(output) < 5 else set()

    others = run(rig(model), requests())
    for drafts in (0, 4):
        one = rig(model, drafts=drafts)
        stuck = guided("stuck", dead_end, logprobs=1)
        stuck.rules.make_guide = lambda: Rule(dead_end, "nothing fits")
        told = run(one, [*requests(), stuck, guided("torn", dead_end)])
        output, finish, failure = told.pop("stuck")
        assert (
            len(output) == 5
            and follows(output, dead_end)
            and finish is FinishReason.ERROR
            and failure == "nothing fits"
        )
        assert told.pop("torn")[1:] == (FinishReason.ERROR, CONTRADICTION)
        assert told == others


def test_nothing_may_come_at_all(model: Model) -> None:
    kinds: tuple[dict[str, Any], ...] = ({}, {"n": 3, "temperature": 1.0}, {"logprobs": 1})
    for kind in kinds:
        one = rig(model)
        told = run(one, [guided("a", lambda output: set(), **kind)])
        assert [(output, finish) for output, finish, _ in told.values()] == [([], FinishReason.ERROR)] * kind.get(
            "n", 1
        )
        assert one.engine.generated == 0


def test_a_sequence_that_would_hand_over_keeps_its_blocks_for_its_transfer(model: Model) -> None:
    """A peer may have been told of them: the prefill side gives them back behind the transfer's end."""
    one = rig(model)
    stuck = guided("a", lambda output: set())
    stuck.purpose = Purpose.HANDOVER
    one.engine.add(stuck)
    (output,) = one.engine.step()
    assert output.finish is FinishReason.ERROR and output.failure is not None and stuck.blocks
    one.scheduler.memory.give_back(stuck)
    check_free(one)


def test_a_given_first_token_is_taken_whatever_the_guide_says(model: Model) -> None:
    one = rig(model)
    known = guided("a", lambda output: set())
    known.purpose, known.branch.given = Purpose.HANDOVER, {0: 33}
    one.engine.add(known)
    (output,) = one.engine.step()
    assert output.finish is FinishReason.HANDED_OVER and known.output == [33] and output.failure is None
    one.scheduler.memory.give_back(known)
    check_free(one)


def drawn(allowed: Allowed, output: list[int], **params: Any) -> int | str | None:
    """The next token, or the reason why there is none."""
    one = guided("a", allowed, **params)
    one.output += output
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(3))
    (sampled,) = sample_rows(logits, [one])
    assert (sampled.failure is None) == (len(sampled.tokens) == sampled.count == 1)
    return sampled.tokens[0] if sampled.tokens else sampled.failure


def test_other_parameters_narrow_what_the_guide_allows() -> None:
    def either(output: list[int]) -> set[int]:
        return {10, 20, END}

    assert drawn(either, [], bad_token_ids=(10, END)) == 20
    assert drawn(either, [], allowed_token_ids=(10, 30)) == 10
    assert drawn(either, [], logit_bias=((20, 50.0),)) == 20
    assert drawn(either, [], bad_token_ids=(10, 20, END)) == CONTRADICTION
    assert drawn(either, [], allowed_token_ids=(30,)) == CONTRADICTION


def test_an_end_is_put_off_as_long_as_something_else_may_come() -> None:
    def may_end(output: list[int]) -> set[int]:
        return {10, END}

    def must_end(output: list[int]) -> set[int]:
        return {END}

    ends = ((END, 50.0),)
    assert drawn(may_end, [], logit_bias=ends) == END
    assert drawn(may_end, [], logit_bias=ends, min_tokens=1) == 10
    assert drawn(may_end, [7], logit_bias=ends, min_tokens=1) == END
    assert drawn(may_end, [7], logit_bias=ends, ignore_eos=True) == 10
    assert drawn(must_end, [], min_tokens=5) == END and drawn(must_end, [], ignore_eos=True) == END
    assert drawn(must_end, [], bad_token_ids=(END,)) == CONTRADICTION


@settings(max_examples=examples(5, 30), deadline=None)
@given(st.data(), st.integers(0, 6), st.integers(9, 40))
def test_whatever_the_rules_are_nothing_else_is_said(
    model: Model, data: st.DataObject, drafts: int, blocks: int
) -> None:
    """Small random automata over few tokens; some have dead ends."""
    asked = []
    for number in range(data.draw(st.integers(1, 4))):
        states = data.draw(st.lists(st.sets(st.sampled_from([END, 3, 4, 5])), min_size=1, max_size=4))

        def allowed(output: list[int], states: list[set[int]] = states) -> set[int]:
            return states[(sum(output) + len(output)) % len(states)]

        kind = data.draw(st.fixed_dictionaries({}, optional={"temperature": st.just(1.0), "n": st.integers(1, 2)}))
        asked.append((str(number), allowed, data.draw(st.lists(st.integers(3, 5), min_size=1, max_size=20)), kind))

    def made() -> list[Sequence]:
        return [guided(name, allowed, prompt, **kind) for name, allowed, prompt, kind in asked]

    expected = run(rig(model), made())
    assert run(rig(model, blocks=blocks, drafts=drafts), made()) == expected
    rules = {name: allowed for name, allowed, _, _ in asked}
    for name, (output, finish, failure) in expected.items():
        allowed = rules[name.partition("/")[0]]
        assert follows(output, allowed) and (failure is None) == (finish is not FinishReason.ERROR)
        assert finish is not FinishReason.ERROR or allowed(output) == set()
