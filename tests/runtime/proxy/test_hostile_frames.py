# SPDX-License-Identifier: Apache-2.0
"""Arbitrary frames of a worker: bills stay within bounds, ids are counted where counts are missing, nothing else
raises."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.http.stream.logprob_shape import CompletionLogprobs, chat_logprobs, prompt_logprobs
from pontil.runtime.proxy.requests.answer import BrokenAnswer, Finished
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.routing.policy import Route, WorkerLoad
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Tokens

P = WorkerLoad("p", "prefill:0", "prefill", "ipc:///p", 0, 10, 4, 100)
D = WorkerLoad("d", "decode:0", "decode", "ipc:///d", 0, 10, 4, 100)
BUDGET, PROMPT = 5, [5, 6, 7]

numbers = st.integers(-(2**63), 2**64 - 1)
counts = st.none() | st.integers(-3, 9) | numbers
ids = st.lists(st.integers(0, 9) | st.integers(0, 300) | numbers, max_size=8)
floats = st.integers(-2, 300) | numbers | st.floats()
logprobs = st.none() | st.lists(st.lists(st.lists(floats, min_size=2, max_size=4), max_size=3), max_size=4)
hostile = st.builds(
    Tokens,
    sender=st.sampled_from(["p", "d", "x"]),
    receiver=st.just("proxy"),
    request_id=st.just("r"),
    attempt=st.sampled_from([0, 0, 0, 1, -1]),
    index=st.integers(-1, 7) | numbers,
    ids=ids,
    choice=st.integers(-1, 4) | numbers,
    finish_reason=st.sampled_from([None, None, None, "stop", "length", "error", ""]),
    stop_match=st.sampled_from([None, "<>", "a"]),
    generated_tokens=counts,
    prompt_tokens=counts,
    cached_tokens=counts,
    logprobs=logprobs,
    prompt_logprobs=logprobs,
)


@st.composite
def plausible(draw: st.DrawFn) -> Tokens:
    """Draw a frame that looks valid: the next or a repeated token of a choice, with any count."""
    first, end = draw(st.integers(0, 5)), draw(st.integers(0, 8))
    return Tokens(
        draw(st.sampled_from(["p", "d"])), "proxy", "r", 0, first, list(range(10 + first, 10 + end)),
        choice=draw(st.integers(0, 2)), finish_reason=draw(st.sampled_from([None, None, "stop", "length", "odd"])),
        generated_tokens=draw(counts), cached_tokens=draw(counts),
    )  # fmt: skip


def started(tokenizer: Tokenizer, n: int, pair: bool, **params: Any) -> Request:
    asked = SamplingParams(max_tokens=BUDGET, seed=1, n=n, stop=("<>",), **params)
    request = Request.start("r", Generation(PROMPT, asked), tokenizer, 0.0)
    request.begin(Route(P, D) if pair else Route.alone(D), 0.0)
    return request


def fed(request: Request, frames: list[Tokens]) -> Iterator[Tokens]:
    """Yield the accepted frames, as the proxy takes them: until the answer breaks or ends."""
    for frame in frames:
        if (
            request.mailbox.end is None
            and request.attempts.expects(frame.sender, frame.attempt)
            and request.is_sound(frame)
        ):
            try:
                request.accept(frame, 1.0)
            except BrokenAnswer:
                return
            yield frame


def check(request: Request, accepted: list[Tokens]) -> None:
    account, n = request.account, request.params.n
    for usage in (account.usage, account.running_usage):
        assert usage.prompt_tokens == len(PROMPT) and 0 <= usage.cached_tokens <= len(PROMPT)
        assert 0 <= usage.completion_tokens <= n * BUDGET
    delivered = [request.mailbox.deltas[choice].ids if choice in request.mailbox.deltas else [] for choice in range(n)]
    assert delivered == [answer.ids for answer in request.answers]
    assert all(len(some) <= BUDGET for some in delivered)
    assert account.running_usage.completion_tokens == sum(map(len, delivered))
    if not any((frame.generated_tokens or -1) >= 0 or frame.generated_tokens == 0 for frame in accepted):
        assert account.usage.completion_tokens == sum(map(len, delivered)), "ids count where nothing was stated (A5)"
    end = request.mailbox.end
    assert (end is not None) == (len(request.reasons) == n)
    assert end is None or isinstance(end, Finished) and end.usage == account.usage
    assert set(request.reasons.values()) <= {"stop", "length"}


@settings(max_examples=examples(40, 200), deadline=None)
@given(st.lists(hostile | plausible(), max_size=14), st.sampled_from([1, 3]), st.booleans())
def test_no_frames_corrupt_a_bill(tokenizer: Tokenizer, frames: list[Tokens], n: int, pair: bool) -> None:  # A5
    request = started(tokenizer, n, pair)
    check(request, list(fed(request, frames)))


@settings(max_examples=examples(30, 150), deadline=None)
@given(st.lists(plausible(), max_size=14), st.sampled_from([1, 3]), st.booleans())
def test_no_order_or_repetition_of_plausible_frames_does(
    tokenizer: Tokenizer, frames: list[Tokens], n: int, pair: bool
) -> None:
    request = started(tokenizer, n, pair)
    check(request, list(fed(request, [*frames, *frames])))


@settings(max_examples=examples(30, 150), deadline=None)
@given(st.data(), st.sampled_from([1, 3]))
def test_of_repeated_counts_the_first_valid_one_stands(tokenizer: Tokenizer, data: st.DataObject, n: int) -> None:
    """Repeated frames are duplicates; with another count they change nothing either."""
    request = started(tokenizer, n, pair=False)
    stated = [data.draw(st.integers(0, 9)) for _ in range(n)]
    for choice in range(n):
        frame = Tokens("d", "proxy", "r", 0, 0, [10, 11], choice=choice, generated_tokens=stated[choice])
        again = Tokens("d", "proxy", "r", 0, 0, [10, 11], choice=choice, generated_tokens=data.draw(counts))
        assert list(fed(request, [frame, again, again])) == [frame, again, again]
    assert request.account.usage.completion_tokens == sum(min(count, 2) for count in stated)
    assert request.account.clamped == sum(count > BUDGET for count in stated)
    assert request.account.disputed == sum(count != 2 for count in stated)


GOOD = [[11, -0.5, 2], [12, -0.25, 1]]


@pytest.mark.parametrize(
    "bad",
    [
        [], [[]], [[11, -0.5]], [[11, -0.5, 1, 1]], [[11.5, -0.5, 1]], [[-1, -0.5, 1]], [[11, float("nan"), 1]],
        [[11, float("inf"), 1]], [[11, -0.5, 0]], [[11, -0.5, float("nan")]], [[float("inf"), -0.5, 1]], [[9, -0.5, 1]],
    ],
)  # fmt: skip
def test_logprobs_that_cannot_be_shown_are_refused(tokenizer: Tokenizer, bad: list[list[float]]) -> None:
    made = started(tokenizer, 1, False, logprobs=1, prompt_logprobs=1)
    frame = Tokens(
        "d", "proxy", "r", 0, 0, [10, 11], logprobs=[[[10, -1.0, 1]], GOOD], prompt_logprobs=[[], GOOD, GOOD]
    )
    assert made.is_sound(frame)
    assert not made.is_sound(Tokens("d", "proxy", "r", 0, 0, [10, 11], logprobs=[[[10, -1.0, 1]], bad]))
    if bad != [[9, -0.5, 1]]:
        prompt = [[], GOOD, bad]
        assert not made.is_sound(Tokens("d", "proxy", "r", 0, 0, [], prompt_logprobs=prompt))


@pytest.mark.parametrize("prompt", [[GOOD] * 3, [[], GOOD], [[], GOOD, GOOD, GOOD]])
def test_prompt_logprobs_are_one_for_each_prompt_token(tokenizer: Tokenizer, prompt: Any) -> None:
    asked = started(tokenizer, 1, False, prompt_logprobs=1)
    assert not asked.is_sound(Tokens("d", "proxy", "r", 0, 0, [10], prompt_logprobs=prompt))
    unasked = started(tokenizer, 1, False)
    assert not unasked.is_sound(Tokens("d", "proxy", "r", 0, 0, [10], prompt_logprobs=[[], GOOD, GOOD]))


@settings(max_examples=examples(40, 200), deadline=None)
@given(logprobs, logprobs)
def test_sound_logprobs_are_json(tokenizer: Tokenizer, some: Any, of_prompt: Any) -> None:
    """Everything that passes the check can be shown in every form."""
    made = started(tokenizer, 1, False, logprobs=1, prompt_logprobs=1)
    ids = [entries[0][0] if entries else 3 for entries in some or []]
    whole = [token for token in ids if isinstance(token, int)]
    frame = Tokens("d", "proxy", "r", 0, 0, whole, logprobs=some, prompt_logprobs=of_prompt)
    if made.is_sound(frame):
        shown = [chat_logprobs(some or [], tokenizer), CompletionLogprobs(tokenizer).take(some or [])]
        known = [entries or None for entries in of_prompt or []]
        json.dumps([*shown, prompt_logprobs(known, tokenizer)], allow_nan=False)


@pytest.mark.parametrize("stated", [None, 2])
def test_ids_behind_the_end_of_a_choice_are_not_accepted(tokenizer: Tokenizer, stated: int | None) -> None:
    """The other choice is still open, so the account is too."""
    made = started(tokenizer, 2, False)
    ended = Tokens("d", "proxy", "r", 0, 0, [10, 11], finish_reason="stop", generated_tokens=stated)
    more = Tokens("d", "proxy", "r", 0, 2, [12, 13])
    check(made, list(fed(made, [ended, more, more])))
    assert made.account.usage.completion_tokens == 2


def test_ids_beyond_the_budget_are_not_accepted(tokenizer: Tokenizer) -> None:
    made = started(tokenizer, 2, False)
    check(made, list(fed(made, [Tokens("d", "proxy", "r", 0, 0, list(range(50)))])))
    assert made.account.usage.completion_tokens == BUDGET and made.account.clamped == 1
