# SPDX-License-Identifier: Apache-2.0
"""A request's timeline, whatever workers tell of it and in which order."""

import math
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.runtime.errors import MalformedFrame
from pontil.runtime.timeline.received import ReceivedRequest
from pontil.runtime.timeline.recorder import MOST_ATTEMPTS, RequestRecorder
from pontil.runtime.timeline.step_gaps import MOST_ENTRIES
from pontil.runtime.timeline.timeline import COMPLETE, OPEN, Timeline, TimelineRow
from pontil.runtime.timeline.worker_report import CHUNK, MOST_PARTS, PULLED
from pontil.runtime.wire.messages import AttemptTimes

ROW = TimelineRow("r-1", 0.0, "tiny", "/v1/completions", "-", OPEN, None, 3, 0, 0, 1, None, 0.0, ("p", "d"))
WORKERS = {"P": "prefill:0", "D": "decode:0"}
seconds = st.floats(0, 5)
numbers = st.floats() | st.integers(-3, 1 << 60) | seconds


def opened(now: float = 10.0) -> RequestRecorder:
    """A recorder of a request that was received two seconds before `now`."""
    recorder, received = RequestRecorder(), ReceivedRequest("/v1/completions", lambda: now - 2)
    received.note("receive", now - 2, now - 1)
    recorder.admit(now, received, lambda at: ROW)
    return recorder


def ended(recorder: RequestRecorder, now: float) -> None:
    recorder.end(replace(ROW, state=COMPLETE, finish="stop", seconds=now - recorder.since), now)


def parts(values: list[tuple[float, float]], *counts: int) -> list[float]:
    """Make parts of so many counts each, begin before end, all within five seconds."""
    return [number for pair in values for number in (*sorted(pair), *counts)]


times = st.lists(st.tuples(seconds, seconds), max_size=5)
sound = st.builds(
    lambda sender, attempt, chunks, pulls, tokens: AttemptTimes(
        sender, "proxy", "r-1", attempt, 5.0, 0.5, parts(chunks, 16), parts(pulls, 2, 512), [1.0, 2.0], [0.25],
        min(tokens), max(tokens),
    ),
    st.sampled_from("PDX"), st.integers(0, 3), times, times, st.tuples(seconds, seconds),
)  # fmt: skip
wild = st.builds(
    AttemptTimes, st.sampled_from("PDX"), st.just("proxy"), st.just("r-1"), st.integers(-1, 3), numbers,
    numbers | st.none(), st.lists(numbers, max_size=8), st.lists(numbers, max_size=8), st.lists(numbers, max_size=3),
    st.lists(numbers, max_size=3), numbers | st.none(), numbers | st.none(),
)  # fmt: skip
happenings = st.lists(
    st.sampled_from(["begin", "broke", "token", "token", "token", "again", "end"]) | sound | wild, max_size=40
)


def check(timeline: Timeline, until: float) -> None:
    """Check that everything is within the request, in order, and finite."""
    begins = [span.begin for span in timeline.spans]
    assert begins == sorted(begins) and len(begins) < 1000
    attempts = {one.attempt: one for one in timeline.spans if one.name == "attempt"}
    for span in timeline.spans:
        end = until if span.end is None else span.end
        assert 0 <= span.begin <= end <= until and math.isfinite(end), span
        if span.process != "proxy":
            inside = attempts[span.attempt]
            assert inside.begin <= span.begin and (inside.end is None or end <= inside.end)
    moments = [event.at for event in timeline.events]
    assert moments == sorted(moments) and all(0 <= at <= until for at in moments)
    gaps = timeline.gaps
    assert len(gaps.seconds) == len(gaps.largest) == len(gaps.steps) <= MOST_ENTRIES
    assert gaps.begin + math.fsum(gaps.seconds) <= until + 1e-6
    assert timeline.largest is None or 0 < timeline.largest.seconds <= until + 1e-6


@settings(max_examples=100)
@given(happenings, st.lists(seconds, min_size=1))
def test_whatever_comes_stays_inside_the_request(happened: list[str | AttemptTimes], pauses: list[float]) -> None:
    recorder, now, number, last = opened(), 10.0, -1, None
    taken: set[tuple[str, int]] = set()
    for place, one in enumerate(happened):
        now += pauses[place % len(pauses)]
        if isinstance(one, AttemptTimes):
            with suppress(MalformedFrame):
                key = one.sender, one.attempt
                fresh = recorder.take(one, now)
                # Only reports of an attempt's workers are taken, once each.
                assert not fresh or (key not in taken and one.sender in WORKERS and 0 <= one.attempt <= number)
                taken |= {key} if fresh else set()
                last = one
        elif recorder.ended is None and one == "begin":
            number += 1
            recorder.broke(now, "another began")
            recorder.begin(number, WORKERS, now)
        elif recorder.ended is None and one == "broke":
            recorder.broke(now, "a reason")
        elif recorder.ended is None and one == "token":
            recorder.gaps.note(now)
        elif one == "again" and last is not None:
            assert not recorder.take(last, now)
        elif recorder.ended is None and one == "end":
            ended(recorder, now)
        until = (now if recorder.ended is None else recorder.ended) - recorder.since
        check(recorder.timeline(now), until)


def test_a_worker_of_another_clock_is_placed_by_its_age() -> None:
    recorder = opened()
    recorder.begin(0, WORKERS, 11.0)
    # It arrives 3 s after the attempt was sent, and is 2.5 s old: the worker had the request half a second later.
    assert recorder.take(AttemptTimes("P", "proxy", "r-1", 0, 2.5, 0.5, [0.5, 1.5, 64]), 14.0)
    # Older than the attempt: it cannot have had it before it was sent.
    assert recorder.take(AttemptTimes("D", "proxy", "r-1", 0, 99.0, 0.25), 14.0)
    spans = {(span.name, span.process): span for span in recorder.timeline(14.0).spans}
    assert (spans["queue", "prefill:0"].begin, spans["queue", "prefill:0"].end) == (3.5, 4.0)
    assert (spans["compute", "prefill:0"].begin, spans["compute", "prefill:0"].end) == (4.0, 5.0)
    assert (spans["queue", "decode:0"].begin, spans["queue", "decode:0"].end) == (3.0, 3.25)


@pytest.mark.parametrize(
    "wrong",
    [
        {"age": math.nan},
        {"age": math.inf},
        {"age": -0.5},
        {"scheduled": 2.5},
        {"scheduled": math.nan},
        {"chunks": [0.0, 1.0]},
        {"chunks": [1.0, 0.5, 3]},
        {"chunks": [0.0, 1.0, -3]},
        {"chunks": [0.0, math.inf, 3]},
        {"chunks": [0.0, 1.0, 3] * (MOST_PARTS + 1)},
        {"pulls": [0.0, 1.0, 1, 1 << 60]},
        {"pulls": [0.0, 1.0, 1, 1] * (MOST_PARTS + 1)},
        {"handoff": [1.0]},
        {"handoff": [1.0, 0.5]},
        {"preempted": [0.5] * (MOST_PARTS + 1)},
        {"preempted": [-0.5]},
        {"first_token": 1.0},
        {"first_token": 1.5, "last_token": 1.0},
    ],
)
def test_times_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    recorder = opened()
    recorder.begin(0, WORKERS, 10.0)
    plain = AttemptTimes("P", "proxy", "r-1", 0, 2.0)
    with pytest.raises(MalformedFrame):
        recorder.take(replace(plain, **wrong), 12.0)  # type: ignore[arg-type]
    # The right one may still come.
    assert recorder.take(plain, 12.0)


def test_a_request_with_many_attempts_keeps_the_first_and_the_last() -> None:
    recorder = opened()
    for number in range(100):
        recorder.begin(number, WORKERS, 11.0 + number)
        recorder.broke(11.5 + number, f"reason {number}" * 100)
    ended(recorder, 200.0)
    timeline = recorder.timeline(200.0)
    numbers = [span.attempt for span in timeline.spans if span.name == "attempt"]
    assert len(numbers) == MOST_ATTEMPTS and numbers[0] == 0 and numbers[-1] == 99
    assert max(len(str(event.reason)) for event in timeline.events) < 1000


def test_a_full_report_has_a_bounded_size() -> None:
    recorder = opened()
    recorder.begin(0, WORKERS, 10.0)
    many = [0.0, 1.0, 3] * MOST_PARTS, [0.0, 1.0, 3, 4] * MOST_PARTS
    for sender in WORKERS:
        assert recorder.take(AttemptTimes(sender, "proxy", "r-1", 0, 2.0, 0.0, *many), 12.0)
    for step in range(100_000):
        recorder.gaps.note(10.0 + step / 1000)
    assert recorder.size < 1 << 15
    assert len(recorder.timeline(200.0).spans) == 2 * (2 * MOST_PARTS + 1) + 3
    assert (CHUNK, PULLED) == (3, 4)
