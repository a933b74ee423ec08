# SPDX-License-Identifier: Apache-2.0
"""Comparison of answers: an equal one is equal, and every kind of difference is found and said."""

import copy
from typing import Any

import pytest

from pontil.launcher.tools.chaos.chaos_answer import ChaosAnswer, difference

USAGE = {"prompt_tokens": 5, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
EVENTS: list[dict[str, Any] | None] = [
    {"choices": [{"index": 0, "text": "a b", "token_ids": [1, 2], "logprobs": {"token_logprobs": [-0.5, -0.25]}}]},
    {"choices": [{"index": 1, "text": "c", "token_ids": [3], "finish_reason": "stop"}]},
    {"choices": [{"index": 0, "text": " d", "token_ids": [4], "finish_reason": "length"}]},
    {"choices": [], "usage": USAGE},
    None,
]


def answer(events: "list[dict[str, Any] | None]") -> ChaosAnswer:
    made = ChaosAnswer()
    for number, event in enumerate(events):
        made.take(event, float(number))
    return made


def test_an_answer_is_put_together_and_its_times_are_those_of_tokens() -> None:
    made = answer(EVENTS)
    assert made.choices[0].text == "a b d" and made.choices[0].token_ids == [1, 2, 4]
    assert (made.choices[1].finish, made.missing, made.times) == ("stop", None, [0.0, 1.0, 2.0])


def test_a_chat_and_a_whole_answer_are_read_alike() -> None:
    chat = ChaosAnswer()
    chat.take({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}, 0.0)
    chat.take({"choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": [9], "finish_reason": "stop"}]}, 1.0)
    chat.take({"choices": [], "usage": USAGE}, 2.0)
    chat.take(None, 2.0)
    whole = ChaosAnswer()
    message = {"role": "assistant", "content": "x"}
    whole.take_whole(
        {"choices": [{"index": 0, "message": message, "token_ids": [9], "finish_reason": "stop"}], "usage": USAGE}
    )
    assert chat.times == [1.0] and difference(whole, chat) is None and difference(chat, whole) is None


def test_how_events_are_cut_and_what_was_cached_makes_no_difference() -> None:
    joined = copy.deepcopy(EVENTS)
    assert joined[0] is not None and joined[3] is not None
    joined[0]["choices"][0] |= {"text": "a b d", "token_ids": [1, 2, 4], "finish_reason": "length"}
    joined[3]["usage"]["prompt_tokens_details"] = {"cached_tokens": 0}
    assert difference(answer(EVENTS), answer([joined[0], joined[1], *joined[3:]])) is None


@pytest.mark.parametrize(
    ("place", "change", "says"),
    [
        (0, {"text": "a c"}, "choice 0 differs in text from place 2"),
        (0, {"token_ids": [1, 3]}, "choice 0 differs in token_ids from place 1"),
        (0, {"logprobs": {"token_logprobs": [-0.5]}}, "choice 0 differs in logprobs: 1 long and not 2"),
        (1, {"finish_reason": "length"}, "choice 1 ended by length and not by stop"),
        (1, {"index": 2}, "it has choices [0, 2] and not [0, 1]"),
        (2, {"finish_reason": None}, "it ended early, with no finish reason"),
    ],
)
def test_a_difference_is_said(place: int, change: dict[str, Any], says: str) -> None:
    events = copy.deepcopy(EVENTS)
    event = events[place]
    assert event is not None
    event["choices"][0] |= change
    assert says in str(difference(answer(EVENTS), answer(events)))


def test_other_counts_and_a_missing_end_are_differences() -> None:
    events = copy.deepcopy(EVENTS)
    assert events[3] is not None
    events[3]["usage"]["completion_tokens"] = 5
    assert difference(answer(EVENTS), answer(events)) == "usage has 5 completion_tokens and not 4"
    assert difference(answer(EVENTS), answer(EVENTS[:-1])) == "it ended early, with no [DONE]"
    assert difference(answer(EVENTS), answer([*EVENTS[:3], None])) == "it ended early, with no usage"
