# SPDX-License-Identifier: Apache-2.0
"""The timelines that a proxy keeps: bounded, found by their ids, and told once."""

from dataclasses import replace

import pytest

from pontil.runtime.threads import ThreadFailures
from pontil.runtime.timeline.received import ReceivedRequest
from pontil.runtime.timeline.recorder import MOST_OF_ONE, RequestRecorder
from pontil.runtime.timeline.timeline import COMPLETE, LargestPart, Timeline, TimelineRow
from pontil.runtime.timeline.timelines import GRACE, MOST_BYTES, MOST_ENDED, MOST_LISTED, Timelines, log_slow, slow_line
from pontil.runtime.wire.messages import AttemptTimes

ROW = TimelineRow("r-1", 0.0, "tiny", "-", "alice", COMPLETE, "stop", 3, 1, 2, 1, 0.5, 2.0, ("decode:0",))


class SetClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def admit(timelines: Timelines, name: str) -> RequestRecorder:
    recorder = RequestRecorder()
    recorder.admit(timelines.clock(), None, lambda now: replace(ROW, id=name, state="open"))
    recorder.begin(0, {"D": "decode:0"}, timelines.clock())
    timelines.admit(name, recorder)
    return recorder


def end(timelines: Timelines, name: str, seconds: float = 2.0) -> None:
    timelines.end(replace(ROW, id=name, seconds=seconds), timelines.clock())


def test_ten_thousand_requests_leave_a_bounded_number(clock: SetClock) -> None:
    timelines, pulls = Timelines(clock), [0.0, 1.0, 3, 4] * 128
    for number in range(10_000):
        clock.now += 0.001
        name = f"client-{number:04x}"
        recorder = admit(timelines, name)
        for _ in range(300 if number % 100 == 0 else 2):
            clock.now += 0.0001
            recorder.gaps.note(clock.now)
        end(timelines, name)
        assert timelines.take(AttemptTimes("D", "proxy", name, 0, 2.0, 0.0, [], pulls if number % 50 == 0 else []))
    assert not timelines.open and len(timelines.ended) == len(timelines.sizes) == MOST_ENDED
    assert timelines.bytes == sum(one.size for one in timelines.ended.values()) <= MOST_BYTES
    assert timelines.find("client-0000") is None and timelines.find("client-270f") is not None
    rows = timelines.rows()
    assert len(rows) == MOST_LISTED and [row.id for row in rows[:2]] == ["client-270f", "client-270e"]


def test_large_timelines_are_fewer(clock: SetClock) -> None:
    timelines = Timelines(clock, most_bytes=10_000)
    for number in range(20):
        admit(timelines, f"n-{number}")
        end(timelines, f"n-{number}")
    assert timelines.bytes <= 10_000 and 1 <= len(timelines.ended) < 20 and timelines.find("n-19") is not None


def test_reports_after_the_end_stay_within_the_bytes_too(clock: SetClock) -> None:
    timelines = Timelines(clock, most_bytes=20_000)
    for number in range(6):
        admit(timelines, f"n-{number}")
        end(timelines, f"n-{number}")
    for number in range(5, -1, -1):
        timelines.take(AttemptTimes("D", "proxy", f"n-{number}", 0, 2.0, 0.0, [], [0.0, 1.0, 3, 4] * 128))
        assert timelines.bytes == sum(one.size for one in timelines.ended.values()) <= 20_000
    assert timelines.find("n-5") is not None and timelines.find("n-0") is None


def test_a_fault_in_one_timeline_reaches_no_other(clock: SetClock) -> None:
    failures, heard = ThreadFailures(), list[str]()
    timelines = Timelines(clock, failures)
    timelines.on_complete(lambda timeline: heard.append(timeline.row.id))
    for name in ("a", "broken", "b"):
        admit(timelines, name)
        end(timelines, name)
    # Times that no clock gives.
    timelines.ended["broken"].attempts[0].begun = "never"  # type: ignore[assignment]
    clock.now += GRACE
    timelines.tick()
    assert heard == ["a", "b"] and failures.counts() == {"timelines": 1} and not timelines.untold


def test_requests_are_found_by_their_id_and_by_that_of_the_http_request(clock: SetClock) -> None:
    timelines = Timelines(clock)
    for name in ("x-1-a", "x-1-b", "x-2", "x"):
        clock.now += 1
        admit(timelines, name)
    end(timelines, "x-1-a")
    assert [one.line(0.0).id for one in timelines.named("x-1")] == ["x-1-a", "x-1-b"]
    assert [one.line(0.0).id for one in timelines.named("x-1-b")] == ["x-1-b"]
    assert [row.id for row in timelines.rows()] == ["x", "x-2", "x-1-b", "x-1-a"]
    for hostile in ("", "y", "\udcff", "x-1-", "\x00" * 600, "x" * 100_000):
        assert timelines.named(hostile) == []


def test_a_report_is_taken_once_and_of_the_attempts_workers_only(clock: SetClock) -> None:
    timelines = Timelines(clock)
    admit(timelines, "r-1")
    report = AttemptTimes("D", "proxy", "r-1", 0, 0.0)
    for other in ({"request_id": "r-2"}, {"sender": "X"}, {"attempt": 1}):
        assert not timelines.take(replace(report, **other))
    end(timelines, "r-1")
    before = timelines.bytes
    assert timelines.take(report) and not timelines.take(report) and timelines.bytes > before


def test_listeners_hear_of_each_request_once_after_the_grace(clock: SetClock) -> None:
    failures = ThreadFailures()
    timelines, heard, slow = Timelines(clock, failures), list[Timeline](), list[str]()

    def broken(timeline: Timeline) -> None:
        raise ValueError("a listener's fault")

    timelines.on_complete(broken)
    timelines.on_complete(heard.append)
    timelines.on_complete(lambda timeline: slow.append(timeline.row.id), 3.0)
    admit(timelines, "fast-1")
    admit(timelines, "slow-1").is_hidden = False
    admit(timelines, "trial-1").is_hidden = True
    end(timelines, "fast-1")
    end(timelines, "trial-1", 9.0)
    clock.now += GRACE / 2
    end(timelines, "slow-1", 3.0)
    timelines.tick()
    assert not heard
    # A report that comes within the grace is in what is told.
    assert timelines.take(AttemptTimes("D", "proxy", "fast-1", 0, 0.25, 0.125))
    clock.now += GRACE / 2
    timelines.tick()
    assert [one.row.id for one in heard] == ["fast-1"] and not slow
    assert ("queue", "decode:0") in {(span.name, span.process) for span in heard[0].spans}
    clock.now += GRACE
    timelines.tick()
    timelines.tick()
    assert [one.row.id for one in heard] == ["fast-1", "slow-1"] and slow == ["slow-1"]
    assert failures.counts() == {"timelines": 2} and "trial-1" not in [row.id for row in timelines.rows()]


def test_of_very_many_requests_of_one_only_the_first_are_kept(clock: SetClock) -> None:
    """So that many texts to embed do not push all other requests out."""
    timelines, received = Timelines(clock), ReceivedRequest("/v1/embeddings", clock)
    timelines.on_complete(lambda timeline: None)
    for number in range(1000):
        name, recorder = f"x-{number:016x}", RequestRecorder()
        recorder.admit(clock(), received, lambda now: ROW)
        recorder.begin(0, {"E": "embed:0"}, clock())
        timelines.admit(name, recorder)
        assert len(timelines.rows()) == min(number + 1, MOST_OF_ONE)
        end(timelines, name)
        # Nobody is counted as a stranger whose report is not kept.
        assert timelines.take(AttemptTimes("E", "proxy", name, 0, 0.0))
    assert len(timelines.named("x")) == len(timelines.ended) == len(timelines.untold) == MOST_OF_ONE


def test_a_slow_request_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    timeline = Timeline(ROW, (), (), RequestRecorder().gaps.shown(0.0), LargestPart("pull of decode:0", 1.42))
    line = slow_line(timeline)
    assert line == (
        "slow request r-1 key=alice state=complete total=2.000 first_token=0.500 largest=pull of decode:0 1.420 s "
        "workers=decode:0 attempts=1 prompt=3 cached=1 completion=2"
    )
    assert "trace_id" not in ROW.to_json() and replace(ROW, trace_id="4bf9").to_json()["trace_id"] == "4bf9"
    log_slow(timeline)
    log_slow(replace(timeline, row=replace(ROW, trace_id="4bf9")))
    assert [(one.request, getattr(one, "trace_id", None)) for one in caplog.records] == [("r-1", None), ("r-1", "4bf9")]  # type: ignore[attr-defined]
    assert "first_token=- largest=-" in slow_line(
        replace(timeline, largest=None, row=replace(ROW, first_token_seconds=None))
    )
