# SPDX-License-Identifier: Apache-2.0
"""Every option of a request's JSON reaches the parameters that the workers get (D13)."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from pontil.http.openai.chat.request import read_chat
from pontil.http.openai.completions.request import read_completion
from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.grammar_text import grammar_of_choices
from pontil.runtime.sampling_params import SamplingParams

VOCABULARY = 300
BOTH: dict[str, Any] = {
    "max_tokens": 9, "seed": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "stop": ["a"], "stop_token_ids": [7],
    "include_stop_str_in_output": True, "skip_special_tokens": False, "ignore_eos": True, "n": 3, "best_of": 3,
    "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.2,
    "logit_bias": {"3": -100, "0": 1.5}, "min_tokens": 2, "prompt_logprobs": 1, "bad_token_ids": [4],
    "allowed_token_ids": [1, 2], "structured_outputs": {"choice": ["a", "b"]}, "logprob_token_ids": [8],
}  # fmt: skip
EXPECTED = SamplingParams(
    max_tokens=9, seed=5, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, presence_penalty=0.5, frequency_penalty=-0.5,
    repetition_penalty=1.2, n=3, min_tokens=2, logprobs=0, prompt_logprobs=1, stop=("a",), stop_token_ids=(7,),
    bad_token_ids=(4,), allowed_token_ids=(1, 2), logprob_token_ids=(8,), logit_bias=((3, -100.0), (0, 1.5)),
    include_stop_str_in_output=True, skip_special_tokens=False, ignore_eos=True,
    grammar=grammar_of_choices(["a", "b"]),
)  # fmt: skip
# Fields that an option of the launch decides, whatever a client asks for; and those of chats alone.
OF_THE_LAUNCH = {"hide_end_token"}
OF_CHATS = {"thinking_token_budget", "thought"}
OF_RECEIPTS = {"top_logits"}
MESSAGES = [{"role": "user", "content": "hi"}]


def completion(**data: Any) -> SamplingParams:
    return read_completion({"prompt": "hi"} | data, VOCABULARY).sampling.fitted(20)


def chat(**data: Any) -> SamplingParams:
    return read_chat({"messages": MESSAGES} | data, VOCABULARY).sampling.fitted(20)


def test_every_option_arrives() -> None:
    own = [field for field in fields(EXPECTED) if field.name not in OF_THE_LAUNCH | OF_CHATS | OF_RECEIPTS]
    assert all(getattr(EXPECTED, field.name) != field.default for field in own)
    read = read_completion({"prompt": "hi", "logprobs": 4} | BOTH, VOCABULARY).sampling
    assert read.fitted(read.max_tokens or 0) == EXPECTED
    read = read_chat({"messages": MESSAGES, "logprobs": True, "top_logprobs": 4} | BOTH, VOCABULARY).sampling
    assert read.fitted(read.max_tokens or 0) == EXPECTED
    assert chat(thinking_token_budget=0).thinking_token_budget == 0
    assert chat(thinking_token_budget=10**30).thinking_token_budget == 20, "no worker reads such a number"
    EXPECTED.check(VOCABULARY)


@pytest.mark.parametrize(
    ("data", "output", "prompt"),
    [
        ({}, None, None),
        ({"logprobs": 0}, 0, None),
        ({"logprobs": 5}, 5, None),
        ({"echo": True}, None, None),
        ({"echo": True, "logprobs": 0}, 0, 0),
        ({"echo": True, "logprobs": 3}, 3, 3),
        ({"echo": True, "logprobs": 3, "prompt_logprobs": 5}, 3, 5),
        ({"prompt_logprobs": 0}, None, 0),
    ],
)
def test_logprobs_of_completions(data: dict[str, Any], output: int | None, prompt: int | None) -> None:
    params = completion(**data)
    assert (params.logprobs, params.prompt_logprobs) == (output, prompt)


@pytest.mark.parametrize(
    ("data", "output"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs_of_chats(data: dict[str, Any], output: int | None) -> None:
    assert chat(**data).logprobs == output


def test_several_greedy_choices_are_allowed() -> None:
    assert completion(n=128, temperature=0).n == 128


@pytest.mark.parametrize("read", [lambda: completion(logprobs=-1), lambda: chat(logprobs=True, top_logprobs=-1)])
def test_the_logprobs_of_all_tokens_are_refused_with_the_limit(read: Callable[[], object]) -> None:
    with pytest.raises(RequestError, match="logprobs must be between 0 and 20, not -1"):
        read()
