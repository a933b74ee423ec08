# SPDX-License-Identifier: Apache-2.0
"""A request's progress over frames in any order: ids once, text by the rules, counts as stated."""

import asyncio
from collections.abc import Sequence

import pytest
from event_reader import EventReader
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.proxy.requests.answer import BrokenAnswer, Delta, Ended, Finished
from pontil.runtime.proxy.requests.generation import Generation, submits
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.routing.policy import Route, WorkerLoad
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Tokens
from pontil.runtime.worker.process.worker_request import TextStops

P = WorkerLoad("p", "prefill:0", "prefill", "ipc:///p", 0, 10, 4, 100)
D = WorkerLoad("d", "decode:0", "decode", "ipc:///d", 0, 10, 4, 100)
EOS = 2


def request(tokenizer: Tokenizer, whole: bool = False, **params: object) -> Request:
    settings = SamplingParams(**({"max_tokens": 8, "seed": 1} | params))  # type: ignore[arg-type]
    request = Request.start("r", Generation([5, 6, 7], settings), tokenizer, 0.0)
    request.begin(Route.alone(D) if whole else Route(P, D), 0.0)
    return request


def frame(sender: str, index: int, ids: Sequence[int], **fields: object) -> Tokens:
    return Tokens(sender, "proxy", "r", 0, index, list(ids), **fields)  # type: ignore[arg-type]


def read(request: Request) -> tuple[str, list[int], Finished]:
    async def collect() -> tuple[str, list[int], Finished]:
        text, ids, reader = "", list[int](), EventReader(request.mailbox)
        while isinstance(event := await reader.take(), Delta):
            text, ids = text + event.text, ids + event.ids
        reason = request.reasons[0]
        assert event == Ended(0, reason, request.answers[0].stop_reason if reason == "stop" else None)
        event = await reader.take()
        assert isinstance(event, Finished)
        return text, ids, event

    return asyncio.run(collect())


def test_decodes_first_frame_repeats_what_prefill_sent(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("abcd", False)
    made = request(tokenizer)
    first = frame("p", 0, ids[:1], generated_tokens=1, cached_tokens=2)
    assert made.accept(first, 1.0) == 1
    assert made.accept(frame("d", 0, ids[:2]), 1.0) == 1
    assert made.accept(first, 1.0) == 0
    assert made.accept(frame("d", 2, [*ids[2:], EOS], finish_reason="stop", generated_tokens=4), 1.0) == 3
    assert read(made) == ("abcd", [*ids, EOS], Finished("stop", Usage(3, 5, 2), "prefill:0>decode:0"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_interleaving_of_the_two_workers_gives_the_same(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Frames of one worker keep their order; the two workers' frames may mix in any way, decode's end included."""
    ids = [*tokenizer.encode("a 😀 b", False), EOS]
    made = request(tokenizer, max_tokens=50)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids) - 1))))
    starts = [0, *cuts]
    decode = [frame("d", start, ids[start:end]) for start, end in zip(starts, [*cuts, len(ids)], strict=True)]
    last = decode[-1]
    decode[-1] = frame("d", last.index, last.ids, finish_reason="stop", generated_tokens=len(ids) - 1)
    at = data.draw(st.integers(0, len(decode) - 1))
    frames = decode[:at] + [frame("p", 0, ids[:1], generated_tokens=1)] + decode[at:]
    for item in frames:
        made.accept(item, 1.0)
    text, seen, end = read(made)
    assert (text, seen) == ("a 😀 b", ids)
    assert end.usage.completion_tokens == len(ids)


def test_a_missing_count_falls_back_to_ids(tokenizer: Tokenizer) -> None:  # A5
    made = request(tokenizer)
    made.accept(frame("d", 0, [10, 11, EOS], finish_reason="stop", generated_tokens=2), 1.0)
    assert read(made)[2].usage == Usage(3, 3, 0)


def test_what_exceeds_the_budget_is_not_delivered(tokenizer: Tokenizer) -> None:  # A5, A6
    made = request(tokenizer, whole=True, max_tokens=2)
    made.accept(frame("d", 0, [10, 11, 12, 13], generated_tokens=99), 1.0)
    text, ids, end = read(made)
    assert ids == [10, 11] and text == tokenizer.decode([10, 11])
    assert end.reason == "length" and end.usage.completion_tokens == 2
    assert made.account.clamped


def test_lost_and_contradicting_tokens_break_the_answer(tokenizer: Tokenizer) -> None:
    made = request(tokenizer)
    with pytest.raises(BrokenAnswer, match="lost"):
        made.accept(frame("d", 1, [10]), 1.0)
    made.accept(frame("p", 0, [10], generated_tokens=1), 1.0)
    with pytest.raises(BrokenAnswer, match="disagree"):
        made.accept(frame("d", 0, [11, 12]), 1.0)


def test_prefill_may_end_the_request(tokenizer: Tokenizer) -> None:
    made = request(tokenizer)
    made.accept(frame("p", 0, [EOS], finish_reason="stop", generated_tokens=1), 1.0)
    assert read(made) == ("", [EOS], Finished("stop", Usage(3, 1, 0), "prefill:0>decode:0"))


@pytest.mark.parametrize(("include", "shown"), [(False, "ab"), (True, "ab<>")])
def test_the_text_ends_at_the_stop_string(tokenizer: Tokenizer, include: bool, shown: str) -> None:
    ids = tokenizer.encode("ab<>", False)
    made = request(tokenizer, whole=True, stop=("<>",), include_stop_str_in_output=include)
    for index, token in enumerate(ids):
        last = index + 1 == len(ids)
        fields: dict[str, object] = {"finish_reason": "stop", "stop_match": "<>"} if last else {}
        made.accept(frame("d", index, [token], **fields, generated_tokens=len(ids) if last else None), 1.0)
        if index == 2:
            assert made.mailbox.deltas[0].text == "ab", "what may become a stop string is held back"
    text, seen, end = read(made)
    assert (text, seen, end.usage.completion_tokens) == (shown, ids, len(ids))


def test_what_was_held_back_is_shown_when_no_stop_string_came(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ab<", False)
    made = request(tokenizer, whole=True, stop=("<>",))
    made.accept(frame("d", 0, ids, finish_reason="length", generated_tokens=3), 1.0)
    assert read(made)[0] == "ab<"


@pytest.mark.parametrize(("include", "shown"), [(False, "a"), (True, "ab")])
def test_a_stop_token_is_hidden_and_counted(tokenizer: Tokenizer, include: bool, shown: str) -> None:
    ids = tokenizer.encode("ab", False)
    made = request(tokenizer, whole=True, stop_token_ids=(ids[1],), include_stop_str_in_output=include)
    made.accept(frame("d", 0, ids, finish_reason="stop", generated_tokens=2), 1.0)
    text, seen, end = read(made)
    assert (text, seen, end.usage.completion_tokens) == (shown, ids, 2)


def test_a_stop_reason_never_comes_from_text(tokenizer: Tokenizer) -> None:  # A7
    ids = tokenizer.encode("a<>b", False)
    made = request(tokenizer, whole=True, stop=("<>",))
    made.accept(frame("d", 0, ids), 1.0)
    assert made.mailbox.end is None and made.mailbox.deltas[0].text == "a"


def test_unsound_frames(tokenizer: Tokenizer) -> None:
    made = request(tokenizer)
    assert made.is_sound(frame("d", 0, [0]))
    for bad in (frame("d", -1, [1]), frame("d", 0, [-1]), frame("d", 0, [2**40]), frame("d", 0, [1], choice=1)):
        assert not made.is_sound(bad)
    assert not made.is_sound(frame("d", 0, [1], choice=-1))


def test_prefill_is_needed_until_decode_speaks(tokenizer: Tokenizer) -> None:
    made = request(tokenizer)
    assert made.needs("p") and made.needs("d") and not made.needs("x")
    made.accept(frame("p", 0, [10], generated_tokens=1), 1.0)
    assert made.needs("p")
    made.accept(frame("d", 0, [10]), 1.0)
    assert made.needs("d") and not made.needs("p")


def test_both_halves_are_told_of_each_other(tokenizer: Tokenizer) -> None:  # C2
    decode, prefill = submits(request(tokenizer), "proxy")
    assert (decode.receiver, decode.phase, decode.peer, decode.peer_endpoint) == ("d", "decode", "p", "ipc:///p")
    assert (prefill.receiver, prefill.phase, prefill.peer) == ("p", "prefill", "d")
    assert decode.transfer_id == prefill.transfer_id is not None
    (whole,) = submits(request(tokenizer, whole=True), "proxy")
    assert (whole.receiver, whole.phase, whole.transfer_id) == ("d", "whole", None)
    assert SamplingParams.from_wire(whole.sampling).max_tokens == 8


def test_only_the_two_of_a_transfer_are_told_its_secret(tokenizer: Tokenizer) -> None:
    assert [one.transfer_secret for one in submits(request(tokenizer), "proxy", "ab")] == ["ab", "ab"]
    assert [one.transfer_secret for one in submits(request(tokenizer, whole=True), "proxy", "ab")] == [None]
    assert "ab" * 8 not in repr(submits(request(tokenizer), "proxy", "ab" * 8))


def test_choices_end_one_by_one_and_the_request_with_the_last(tokenizer: Tokenizer) -> None:
    """Choice 0 ends at prefill, 1 and 2 go on; prefill is needed until decode has sent tokens of those."""
    made = request(tokenizer, n=3, max_tokens=4)
    for choice in range(3):
        reason = "stop" if choice == 0 else None
        made.accept(frame("p", 0, [5], choice=choice, finish_reason=reason, generated_tokens=1), 1.0)
    assert made.reasons == {0: "stop"} and made.mailbox.end is None
    made.accept(frame("d", 0, [5, 6], choice=1), 1.0)
    assert made.needs("p") and made.needs("d")
    made.accept(frame("d", 0, [5, 7, 8, 9], choice=2, finish_reason="length", generated_tokens=3), 1.0)
    assert not made.needs("p")
    made.accept(frame("d", 2, [EOS], choice=1, finish_reason="stop", generated_tokens=2), 1.0)
    assert [answer.ids for answer in made.answers] == [[5], [5, 6, EOS], [5, 7, 8, 9]]
    assert made.mailbox.end == Finished("stop", Usage(3, 8, 0), "prefill:0>decode:0")
    assert made.reasons == {0: "stop", 1: "stop", 2: "length"}


def test_late_frames_of_a_complete_choice_change_nothing(tokenizer: Tokenizer) -> None:
    made = request(tokenizer, n=2, max_tokens=2)
    made.accept(frame("d", 0, [5, 6], choice=0, finish_reason="length", generated_tokens=1), 1.0)
    assert made.accept(frame("p", 0, [5], choice=0, generated_tokens=1), 1.0) == 0
    assert made.answers[0].ids == [5, 6] and made.reasons == {0: "length"}


@pytest.mark.parametrize(
    ("wanted", "given", "sound"),
    [
        (None, None, True), (None, [[[5, -0.1, 1]]], False), (1, None, False),
        (1, [[[5, -0.1, 1], [6, -3.0, 2]]], True),
        (1, [[[5, -0.1]]], False), (1, [[[5, -0.1, 1]]] * 2, False),
    ],
)  # fmt: skip
def test_logprobs_come_exactly_where_they_were_asked_for(
    tokenizer: Tokenizer, wanted: int | None, given: object, sound: bool
) -> None:
    made = request(tokenizer, logprobs=wanted)
    assert made.is_sound(frame("p", 0, [5], logprobs=given)) == sound


def test_logprobs_stay_with_their_tokens(tokenizer: Tokenizer) -> None:
    """Decode repeats the first token with its logprobs; tokens beyond the budget are cut from both."""
    made = request(tokenizer, whole=False, logprobs=0, max_tokens=2)
    known = [[[token, -1.0, 2]] for token in (5, 6, 7)]
    made.accept(frame("p", 0, [5], logprobs=known[:1], prompt_logprobs=[[], [[6, -2.0, 1]], [[7, -3.0, 1]]]), 1.0)
    made.accept(frame("d", 0, [5, 6, 7], logprobs=known), 1.0)
    assert made.mailbox.deltas[0].logprobs == known[:2] and made.mailbox.deltas[0].ids == [5, 6]
    assert made.prompt_logprobs == [[], [[6, -2.0, 1]], [[7, -3.0, 1]]]


@pytest.mark.parametrize(
    ("min_tokens", "text", "count"), [(0, "a", 3), (2, "a<>b", 6), (3, "a<>b", 6), (4, "a<>b", 6), (5, "a<>b<>c", 7)]
)
def test_a_stop_string_ends_nothing_before_min_tokens(
    tokenizer: Tokenizer, min_tokens: int, text: str, count: int
) -> None:
    """The worker's check and the proxy's text agree, however the ids are cut into frames."""
    ids = tokenizer.encode("a<>b<>c", False)
    made = request(tokenizer, whole=True, stop=("<>",), min_tokens=min_tokens, max_tokens=20)
    check = TextStops(tokenizer, made.params)
    matches = [check.feed(token) for token in ids]
    ended = next((place + 1 for place, match in enumerate(matches) if match), len(ids))
    assert ended == count
    for start in range(0, count, 2):
        last = start + 2 >= count
        reason, match = ("stop", matches[count - 1]) if last else (None, None)
        made.accept(frame("d", start, ids[start : min(start + 2, count)], finish_reason=reason, stop_match=match), 1.0)
    assert read(made)[0] == text


@pytest.mark.parametrize("said", [-1.0, float("nan"), float("inf"), -float("inf"), 1e300, 2**63, 3.5])
def test_a_time_in_a_queue_is_part_of_the_requests_own(tokenizer: Tokenizer, said: float) -> None:  # B10
    made = request(tokenizer, whole=True)
    made.accept(frame("d", 0, [5], queue_seconds=said), 3.0)
    assert made.times.queued is None
    made.accept(frame("d", 1, [6], queue_seconds=1.25), 3.0)
    made.accept(frame("d", 2, [7], queue_seconds=2.5), 3.0)
    assert made.times.queued == 1.25


@pytest.mark.parametrize("drafted", [-1, 0, 1, 2**53 + 1, 2**64 - 1])
@pytest.mark.parametrize("accepted", [-(2**63), 0, 3, 2**64 - 1])
def test_guesses_are_summed_up_within_reason_and_never_billed(
    tokenizer: Tokenizer, drafted: int, accepted: int
) -> None:  # B9
    made = request(tokenizer, whole=True)
    for index in range(4):
        made.accept(
            frame("d", index, [5], draft_tokens=drafted, accepted_draft_tokens=accepted, generated_tokens=None), 3.0
        )
    assert 0 <= made.reports.accepted <= made.reports.drafted <= 4 * 8 and made.reports.accepted <= 4
    assert made.usage.completion_tokens == 4 and made.entry.imbalance == 0
