# SPDX-License-Identifier: Apache-2.0
"""Reports of where the time of attempts went: of real workers, once each, and in nobody's way."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, open_worker, prompt

from pontil.runtime.timeline.work_times import WorkTimes
from pontil.runtime.timeline.worker_report import CHUNK, PULLED, WorkerReport
from pontil.runtime.wire.messages import AttemptTimes, Hello, Message, Tokens, Welcome
from pontil.runtime.worker.links.proxy_link import ProxyLink
from pontil.runtime.worker.links.proxy_links import MOST_WAITING, ProxyLinks, TimesReporter

Pair = tuple[PromptWorker, PromptWorker]
HELLO = Hello("w", 1, "decode:0", "decode", 1, "cpu", "m", "f", "k", "ipc:///p", 16, 9, 4, 512, 256)


class ShutLine:
    """A socket that takes messages while it is `open`."""

    def __init__(self) -> None:
        self.open, self.sent = True, list[Message]()

    def send(self, message: Message) -> bool:
        if self.open:
            self.sent.append(message)
        return self.open

    def breaks(self, now: float) -> int:
        return 0

    def renew(self, now: float) -> None:
        pass


def reporter_of(takes_times: bool = True) -> tuple[TimesReporter, ProxyLink, ShutLine]:
    line = ShutLine()
    link = ProxyLink(line, HELLO)  # type: ignore[arg-type]
    link.heard(Welcome("proxy", "w", times=takes_times), 1.0)
    return TimesReporter(ProxyLinks([link]).of), link, line


def of(proxy: ScriptedProxy, worker: PromptWorker, name: str) -> AttemptTimes:
    """Return the only report of a worker about a request."""
    (found,) = (one for one in proxy.times if (one.sender, one.request_id) == (worker.incarnation, name))
    # The proxy takes what a worker of ours says.
    WorkerReport.of(found, "a worker", 0.0, 100.0)
    return found


@pytest.fixture
def told(proxy: ScriptedProxy) -> ScriptedProxy:
    """The proxy, which wants reports."""
    proxy.wants_times = True
    return proxy


def test_both_workers_of_a_handoff_tell_their_parts(told: ScriptedProxy, pair: Pair) -> None:
    prefill, decode = pair
    told.submit_pair(prefill, decode, "a", prompt(200), drawn(5))
    told.finish("a")
    everyone_clean(told)
    told.turn_until(lambda: len(told.times) == 2)
    one, other = of(told, prefill, "a"), of(told, decode, "a")
    # 200 tokens in steps of 64, of which the last has 8.
    assert len(one.chunks) == 4 * CHUNK and sum(one.chunks[2::CHUNK]) == 200 and not one.pulls
    assert len(one.handoff) == 2 and one.chunks[-2] <= one.handoff[0] <= one.handoff[1] <= one.age
    assert one.scheduled is not None and one.scheduled <= one.chunks[0] and one.first_token == one.last_token
    assert not other.chunks and not other.handoff and sum(other.pulls[2::PULLED]) == 13
    assert other.pulls[3::PULLED] and min(other.pulls[3::PULLED]) > 0
    assert other.first_token is not None and other.last_token is not None
    assert other.pulls[-3] <= other.first_token < other.last_token <= other.age


def test_a_request_alone_tells_its_chunks(told: ScriptedProxy, pair: Pair) -> None:
    told.submit(pair[0], "a", prompt(70), drawn(3))
    told.finish("a")
    told.turn_until(lambda: bool(told.times))
    one = of(told, pair[0], "a")
    assert sum(one.chunks[2::CHUNK]) == 70 and not one.handoff and not one.pulls and not one.preempted
    assert 0 <= (one.first_token or -1) < (one.last_token or -1) <= one.age


def test_a_cancelled_request_tells_of_what_it_had(told: ScriptedProxy, pair: Pair) -> None:
    told.submit(pair[0], "a", prompt(70), drawn(300))
    told.turn_until(lambda: "a" in told.answers)
    told.cancel(pair[0], "a")
    told.turn_until(lambda: bool(told.times))
    assert sum(of(told, pair[0], "a").chunks[2::CHUNK]) == 70


def test_a_handoff_lasts_until_its_blocks_are_let_go(told: ScriptedProxy, pair: Pair) -> None:
    """The end of an answer comes from the proxy, that of a pull from the decode worker: either may be first."""
    prefill, decode = pair
    told.submit_pair(prefill, decode, "a", prompt(200), drawn(300))
    told.turn_until(lambda: bool(prefill.prefill.jobs.held))
    told.cancel(prefill, "a")
    told.turn_until(lambda: bool(told.times))
    one = of(told, prefill, "a")
    assert len(one.handoff) == 2 and one.chunks[-2] <= one.handoff[0] <= one.handoff[1] <= one.age
    told.cancel(decode, "a")
    everyone_clean(told)


def test_a_preempted_sequence_tells_when_it_lost_its_blocks(told: ScriptedProxy, model: Path, tmp_path: Path) -> None:
    worker = open_worker(model, tmp_path, "mixed:0", "mixed", kv_cache_memory=160 << 10, max_num_seqs=4)
    told.admit(worker)
    for name in "abc":
        told.submit(worker, name, prompt(48), drawn(100))
    told.finish("a", "b", "c")
    told.turn_until(lambda: len(told.times) == 3)
    assert worker.machine.scheduler.preemptions > 0
    lost = [of(told, worker, name) for name in "abc" if of(told, worker, name).preempted]
    assert sum(len(one.preempted) for one in lost) == worker.machine.scheduler.preemptions
    # The lost part is computed again.
    assert all(sum(one.chunks[2::CHUNK]) > 48 for one in lost)


def test_a_proxy_of_an_earlier_version_is_told_nothing(proxy: ScriptedProxy, pair: Pair) -> None:
    proxy.submit(pair[0], "a", prompt(70), drawn(3))
    proxy.finish("a")
    everyone_clean(proxy)
    assert not proxy.times and not pair[0].link.times.waiting
    reporter, _, line = reporter_of(takes_times=False)
    reporter.ended("proxy", "a", 0, 0.0, WorkTimes())
    assert not line.sent and not reporter.waiting


def test_a_report_never_stands_before_tokens() -> None:
    reporter, link, line = reporter_of()
    line.open = False
    reporter.ended("proxy", "a", 0, time.monotonic(), WorkTimes())
    # It waits apart, so that the worker is not held up, and is not sent before what has to arrive.
    assert not link.congested and len(reporter.waiting) == 1
    link.send(Tokens("w", "proxy", "b", 0, 0, [1]))
    line.open = True
    reporter.flush()
    assert not line.sent
    link.flush()
    reporter.flush()
    assert [type(one) for one in line.sent] == [Tokens, AttemptTimes] and not reporter.waiting


def test_a_proxy_that_takes_nothing_holds_up_no_other() -> None:
    lines = ShutLine(), ShutLine()
    links = [ProxyLink(line, HELLO) for line in lines]  # type: ignore[arg-type]
    for number, link in enumerate(links):
        link.heard(Welcome(f"proxy-{number}", "w", times=True), 1.0)
    reporter, shut, open_line = TimesReporter(ProxyLinks(links).of), *lines
    shut.open = False
    for name in "abc":
        reporter.ended("proxy-0", name, 0, time.monotonic(), WorkTimes())
        reporter.ended("proxy-1", name, 0, time.monotonic(), WorkTimes())
    assert [one.request_id for one in open_line.sent if isinstance(one, AttemptTimes)] == ["a", "b", "c"]
    shut.open = True
    reporter.flush()
    assert [one.request_id for one in shut.sent if isinstance(one, AttemptTimes)] == ["a", "b", "c"]
    assert not reporter.waiting


def test_its_age_is_that_of_its_sending() -> None:
    reporter, _, line = reporter_of()
    line.open = False
    arrived = time.monotonic() - 5.0
    reporter.ended("proxy", "a", 0, arrived, WorkTimes(scheduled=arrived + 1.0, last=arrived + 99.0))
    first = reporter.waiting[0].message
    line.open = True
    reporter.flush()
    (sent,) = line.sent
    assert isinstance(sent, AttemptTimes) and sent.age >= first.age >= 5.0
    assert sent == replace(first, age=sent.age) and sent.scheduled == pytest.approx(1.0)
    # Nothing is later than the end of the attempt.
    assert sent.last_token == first.age


def test_reports_for_a_proxy_that_takes_none_are_bounded_and_end_with_it() -> None:
    reporter, link, line = reporter_of()
    line.open = False
    for number in range(3 * MOST_WAITING):
        reporter.ended("proxy", f"r-{number}", 0, 0.0, WorkTimes())
    assert len(reporter.waiting) == MOST_WAITING and reporter.waiting[-1].message.request_id.endswith("767")
    link.forget()
    reporter.flush()
    assert not reporter.waiting
    link.heard(Welcome("next", "w", times=True), 2.0)
    reporter.ended("proxy", "late", 0, 0.0, WorkTimes())
    assert not reporter.waiting and not line.sent
