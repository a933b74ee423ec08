# SPDX-License-Identifier: Apache-2.0
import math
from dataclasses import fields, replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.errors import MalformedFrame, RequestError
from pontil.runtime.sampling_params import ITEMS, PAIRS, PLAIN, SamplingParams

PARAMS = SamplingParams(
    max_tokens=5, seed=2**63, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, presence_penalty=0.5,
    frequency_penalty=-0.5, repetition_penalty=1.2, n=3, min_tokens=2, logprobs=5, prompt_logprobs=0, stop=("a", "b"),
    stop_token_ids=(0, 7), bad_token_ids=(4, 9), allowed_token_ids=(1, 2), logprob_token_ids=(5,),
    logit_bias=((3, -1.5), (0, 100.0)), include_stop_str_in_output=True, skip_special_tokens=False, ignore_eos=True,
    hide_end_token=True, grammar="start: /a/", thinking_token_budget=9, thought="BEGUN", top_logits=8,
)  # fmt: skip


def test_every_option_survives_the_wire() -> None:  # D13
    assert all(getattr(PARAMS, field.name) != field.default for field in fields(PARAMS))
    assert SamplingParams.from_wire(msgpack.unpackb(msgpack.packb(PARAMS.to_wire()))) == PARAMS


def test_every_annotation_has_a_check() -> None:
    assert {field.type for field in fields(SamplingParams)} == {*PLAIN, *ITEMS, PAIRS}


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": "5"}, {"stop": [1]}, {"seed": True}, {"stop_token_ids": 3}, {"n": None}, {"n": 1.0},
        {"logprobs": False}, {"min_p": None}, {"logit_bias": {}}, {"logit_bias": [3]}, {"logit_bias": [[3]]},
        {"logit_bias": [[3, "a"]]}, {"logit_bias": [[3.0, 1.0]]}, {"logit_bias": [[3, True]]},
        {"allowed_token_ids": [None]}, {"grammar": 5}, {"grammar": ["a"]},
    ],
)  # fmt: skip
def test_a_wrong_type_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MalformedFrame, match=next(iter(change))):
        SamplingParams.from_wire(PARAMS.to_wire() | change)


@given(st.dictionaries(st.sampled_from([field.name for field in fields(SamplingParams)]), st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.sampled_from(["", "a"]),
    lambda inner: st.lists(inner, max_size=3), max_leaves=6,
)))  # fmt: skip
def test_hostile_values_are_refused_or_make_whole_params(change: dict[str, Any]) -> None:
    try:
        params = SamplingParams.from_wire(PARAMS.to_wire() | change)
        params.check(100)
    except (MalformedFrame, RequestError):
        return
    assert 1 <= params.n <= 128 and all(0 <= token < 100 for token, _ in params.logit_bias)
    assert math.isfinite(params.temperature + params.min_p + params.repetition_penalty)


def test_a_missing_field_is_refused_and_an_unknown_one_ignored() -> None:
    with pytest.raises(MalformedFrame, match="max_tokens"):
        SamplingParams.from_wire({"seed": 1})
    assert SamplingParams.from_wire({"seed": 1, "max_tokens": 2, "later": []}) == SamplingParams(2, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"n": 0}, {"n": 129}, {"temperature": math.nan}, {"temperature": -0.5}, {"temperature": math.inf},
        {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}, {"min_p": -0.1}, {"min_p": 1.1}, {"presence_penalty": 2.5},
        {"frequency_penalty": math.nan}, {"repetition_penalty": 0.0}, {"min_tokens": 6}, {"min_tokens": -1},
        {"logprobs": 21}, {"prompt_logprobs": -1}, {"bad_token_ids": (10,)}, {"allowed_token_ids": (-1,)},
        {"stop_token_ids": (99,)}, {"logit_bias": ((10, 1.0),)}, {"logit_bias": ((1, math.nan),)},
        {"logit_bias": ((1, 101.0),)},
    ],
)  # fmt: skip
def test_what_no_sampler_can_obey_is_refused(change: dict[str, Any]) -> None:
    PARAMS.check(10)
    with pytest.raises(RequestError) as refused:
        replace(PARAMS, **change).check(10)
    assert refused.value.param == next(iter(change))


def test_facts_follow_from_the_parameters_and_are_not_on_the_wire() -> None:
    plain = SamplingParams(max_tokens=1, seed=0)
    assert not (plain.greedy or plain.penalizes or plain.edits_logits)
    penalty, bias = replace(plain, presence_penalty=0.5), replace(plain, logit_bias=((1, 2.0),), temperature=0.0)
    assert penalty.penalizes and penalty.edits_logits and not penalty.greedy
    assert bias.greedy and bias.edits_logits and not bias.penalizes
    for one in (plain, penalty, bias):
        sent = one.to_wire()
        assert not {"greedy", "penalizes", "edits_logits"} & set(sent)
        read = SamplingParams.from_wire(sent | {"greedy": not one.greedy})
        assert (read, read.greedy, read.edits_logits) == (one, one.greedy, one.edits_logits)
