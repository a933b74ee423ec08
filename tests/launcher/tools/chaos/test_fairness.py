# SPDX-License-Identifier: Apache-2.0
"""Fairness beside a greedy caller: small requests are in time and answered, whatever the speed of the machine."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from faulty_server import BUSY, CUT_OFF, FaultyServer, faulty_server

from pontil.launcher.tools.bench.bench_run import open_session
from pontil.launcher.tools.bench.http_client import HttpClient
from pontil.launcher.tools.chaos.disturber import FaultRecord
from pontil.launcher.tools.chaos.fairness import ProbeRecord, fairness
from pontil.launcher.tools.chaos.fairness_probe import FairnessProbe
from pontil.launcher.tools.chaos.fault_plan import GREED, KILL, PlannedFault


def fault(variant: str, begun: float, ended: float, recovered: float) -> FaultRecord:
    return FaultRecord(PlannedFault(begun, variant, "x", "decode", ended - begun), begun, ended, recovered)


def answered(sent: float, wait: float) -> ProbeRecord:
    return ProbeRecord(sent, sent + wait + 0.1, sent + wait)


def refused(sent: float, ended: float, problem: str = "HTTP 503: no room") -> ProbeRecord:
    return ProbeRecord(sent, ended, None, problem)


GREEDY = fault(GREED, 10.0, 16.0, 16.0)
CALM = (answered(1.0, 0.1), answered(2.0, 0.3), answered(30.0, 0.2))


def test_it_holds_where_every_small_request_is_answered_in_time() -> None:
    verdict = fairness([*CALM, answered(9.5, 1.0), answered(12.0, 1.9), answered(15.9, 0.4)], [GREEDY])
    assert verdict is not None and verdict.held
    assert (verdict.sent, verdict.refused, verdict.late, verdict.most) == (3, 0, 0, 2.0)
    assert verdict.slowest == pytest.approx(1.9) and verdict.calm == pytest.approx(0.3)
    seen = "3 small requests beside greed, 0 refused or lost, 0 late, the slowest token after 1.90 s (limit 2.00 s, "
    assert verdict.describe() == seen + "0.30 s at other times)"


@pytest.mark.parametrize(
    ("probes", "late", "lost", "problems"),
    [
        ([answered(12.0, 2.1), answered(13.0, 0.1)], 1, 0, ()),
        ([answered(15.5, 40.0)], 1, 0, ()),
        ([answered(11.0, 0.1), refused(12.0, 12.1)], 0, 1, ("HTTP 503: no room",)),
        ([refused(9.0, 70.0, "gone"), refused(12.0, 13.0, "gone")], 0, 2, ("gone",)),
    ],
)
def test_one_that_is_late_refused_or_lost_breaks_it(
    probes: list[ProbeRecord], late: int, lost: int, problems: tuple[str, ...]
) -> None:
    verdict = fairness([*CALM, *probes], [GREEDY])
    assert verdict is not None and not verdict.held
    assert (verdict.late, verdict.refused, verdict.problems) == (late, lost, problems)


def test_the_limit_follows_from_the_wait_at_other_times() -> None:
    """A slow machine has longer waits; those beside any fault say nothing of its speed."""
    beside = [GREEDY, fault(KILL, 20.0, 20.0, 28.0)]
    slow = [answered(1.0, 1.5), answered(21.0, 5.0)]
    verdict = fairness([*slow, answered(12.0, 5.9)], beside)
    assert verdict is not None and verdict.held and verdict.most == 6.0
    late = fairness([*slow, answered(12.0, 6.1)], beside)
    assert late is not None and late.late == 1
    unknown = fairness([answered(12.0, 2.1)], beside)
    assert unknown is not None and unknown.calm is None and not unknown.held


def test_another_fault_excuses_its_own_seconds_and_no_more() -> None:
    killed = [GREEDY, fault(KILL, 12.0, 12.0, 15.0)]
    held = fairness([*CALM, answered(11.0, 4.9), refused(11.5, 13.0)], killed)
    assert held is not None and held.held and held.slowest == pytest.approx(1.9)
    for probe in (answered(11.0, 5.1), answered(15.1, 2.1), refused(15.1, 15.2), refused(10.5, 11.9)):
        verdict = fairness([*CALM, probe], killed)
        assert verdict is not None and not verdict.held, probe


@pytest.mark.parametrize(
    "windows", [[], [(5.0, 9.0)], [(1.5, 2.0), (1.8, 2.5)], [(0.0, 1.5)], [(2.5, 9.0)], [(0.0, 9.0)]]
)
def test_a_wait_is_what_no_window_covers(windows: list[tuple[float, float]]) -> None:
    probe = answered(1.0, 2.0)
    steps = [1.0 + place / 1000 for place in range(2000)]
    outside = sum(not any(begun <= at < ended for begun, ended in windows) for at in steps)
    assert probe.wait(windows) == pytest.approx(outside / 1000, abs=0.01)


def test_without_greed_there_is_no_verdict_and_without_requests_a_bad_one() -> None:
    assert fairness(CALM, [fault(KILL, 10.0, 10.0, 15.0)]) is None
    unreached = replace(GREEDY, begun=0.0)
    assert fairness(CALM, [unreached]) is None
    verdict = fairness(CALM, [GREEDY])
    assert verdict is not None and not verdict.held


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server() as made:
        yield made


def test_each_probe_has_a_record_and_is_found_by_no_cache(server: FaultyServer) -> None:
    server.faults = ["", BUSY, CUT_OFF]

    async def run() -> list[ProbeRecord]:
        async with open_session(10.0) as session:
            probe = FairnessProbe(HttpClient(session, server.url), "m", "salt", asyncio.Event())
            for number in range(3):
                await probe.one(number)
            probe.over.set()
            await probe.run()
            return probe.records

    first, busy, cut = asyncio.run(run())
    assert first.answered is not None and first.sent < first.answered <= first.ended and not first.problem
    assert busy.answered is None and busy.problem == "HTTP 503: no room"
    assert cut.answered is not None, "its token came"
    assert len({body["cache_salt"] for body in server.asked}) == 3
    assert all(body["max_tokens"] == 1 and body["stream"] for body in server.asked)


def test_probes_are_sent_until_the_load_is_over(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pontil.launcher.tools.chaos.fairness_probe.EVERY", 0.01)

    async def run() -> list[ProbeRecord]:
        over = asyncio.Event()
        async with open_session(10.0) as session:
            probe = FairnessProbe(HttpClient(session, server.url), "m", "salt", over)
            running = asyncio.create_task(probe.run())
            while len(probe.records) < 3:
                await asyncio.sleep(0)
            over.set()
            await running
            return probe.records

    assert len(asyncio.run(run())) == len(server.asked) >= 3
