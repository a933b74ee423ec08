# SPDX-License-Identifier: Apache-2.0
"""The checks after the faults: each holds for what is right, and breaks for the one thing that it looks for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pontil.launcher.tools.chaos.chaos_checks import ChaosCheck, ChaosTrial, answers_check, judged
from pontil.launcher.tools.chaos.chaos_load import AnswerOutcome, AnswerRecord
from pontil.launcher.tools.chaos.disturber import FaultRecord
from pontil.launcher.tools.chaos.fairness import FairnessVerdict
from pontil.launcher.tools.chaos.fault_plan import CUT, GREED, KILL, LONG_STOP, PROXY, SHORT_STOP, PlannedFault
from pontil.launcher.tools.chaos.launch_facts import ExitFacts
from pontil.launcher.tools.chaos.launch_rest import LaunchRest, ProcessHoldings

MIB = 1 << 20
LEDGER = {"prompt_tokens": 100, "completion_tokens": 200, "open": 0}
USED = {"prefill:0": 0, "decode:0": 2}
HELD = {("proxy", 1): ProcessHoldings(30, 100 * MIB), ("decode:0", 2): ProcessHoldings(40, 100 * MIB)}
BEFORE = LaunchRest(HELD, USED, LEDGER, {"pontil_thread_failures_total": 1.0}, 0.0, frozenset({"old"}))


def fault(variant: str, target: str, begun: float, ended: float, survived: bool = True) -> FaultRecord:
    return FaultRecord(PlannedFault(begun, variant, target, "decode", ended - begun), begun, ended, ended + 1, survived)


# The observations that the checks look at: two answers, a kill, two stops and a cut that all held.
FINE = ChaosTrial(
    before=BEFORE,
    after=replace(BEFORE, ledger={"prompt_tokens": 110, "completion_tokens": 220, "open": 0}),
    records=(
        AnswerRecord("a", 0.0, 1.0, AnswerOutcome.SAME, "", (0.1, 0.2), 5, 10),
        AnswerRecord("b", 0.0, 1.0, AnswerOutcome.REFUSED, "busy"),
        AnswerRecord("c", 1.0, 2.0, AnswerOutcome.SAME, "", (), 5, 10),
    ),
    exits=(
        ExitFacts("decode:0", 10.1, "signal", "was killed by SIGKILL", ("line",)),
        ExitFacts("prefill:0", 23.0, "sick", "was killed: it sent no heartbeat", ()),
    ),
    faults=(
        fault(KILL, "decode:0", 10.0, 10.0, survived=False),
        fault(LONG_STOP, "prefill:0", 20.0, 23.1, survived=False),
        fault(SHORT_STOP, "decode:0", 30.0, 31.0),
        fault(CUT, "decode:0", 40.0, 44.0),
    ),
    planned=4,
    findings=((True, "equal"),),
)


def broken(seen: ChaosTrial) -> list[ChaosCheck]:
    return [check for check in seen.checks if not check.held]


def test_all_hold_where_all_is_right() -> None:
    assert broken(FINE) == [] and len({check.name for check in FINE.checks}) == len(FINE.checks) == 12
    assert broken(replace(FINE, findings=None)) == []
    several = replace(FINE, after=replace(FINE.after, ledger=None))
    assert broken(several) == []


def of_after(**changes: object) -> Callable[[], ChaosTrial]:
    return lambda: replace(FINE, after=replace(FINE.after, **changes))  # type: ignore[arg-type]


def of_record(**changes: object) -> Callable[[], ChaosTrial]:
    first = replace(FINE.records[0], **changes)  # type: ignore[arg-type]
    return lambda: replace(FINE, records=(first, *FINE.records[1:]))


def of_exit(**changes: object) -> Callable[[], ChaosTrial]:
    first = replace(FINE.exits[0], **changes)  # type: ignore[arg-type]
    return lambda: replace(FINE, exits=(first, *FINE.exits[1:]))


UNREACHED = FaultRecord(FINE.faults[0].planned, problem="decode:0 had no turn")


@pytest.mark.parametrize(
    ("make", "name", "says"),
    [
        (of_record(outcome=AnswerOutcome.CHANGED, detail="x"), "answers", "1 are changed and 0 lost"),
        (of_record(outcome=AnswerOutcome.LOST, detail="x"), "answers", "0 are changed and 1 lost"),
        (of_after(imbalance=3.0), "ledger", "imbalance 3"),
        (of_record(completion_tokens=9), "usage", "replies say 19 completion tokens and the ledger 20"),
        (of_after(ledger={"prompt_tokens": 110, "completion_tokens": 220, "open": 1}), "open requests", "1 are open"),
        (lambda: replace(FINE, findings=((True, "a"), (False, "b"))), "audit", "1 of 2"),
        (lambda: replace(FINE, findings=()), "audit", "0 of 0"),
        (lambda: replace(FINE, exits=(*FINE.exits, ExitFacts("proxy", 50.0, "crash", "crashed", ("boom",)))), "deaths",
         "proxy crashed, and nobody had it killed"),
        (lambda: replace(FINE, exits=FINE.exits[1:]), "deaths", "decode:0 was to die by kill and has no exit"),
        (of_exit(at=42.0), "deaths", "decode:0 was killed by SIGKILL, and nobody had it killed"),
        (lambda: replace(FINE, exits=(*FINE.exits, FINE.exits[0])), "deaths", "nobody had it killed"),
        (of_after(used_blocks={"prefill:0": 0, "decode:0": 3}), "blocks", "decode:0 has 3 KV blocks in use and had 2"),
        (of_after(used_blocks={"prefill:0": 0}), "blocks", "decode:0 has None KV blocks in use"),
        (of_after(holdings=HELD | {("proxy", 1): ProcessHoldings(60, 100 * MIB)}), "descriptors", "proxy has 30 more"),
        (of_after(holdings={("proxy", 1): HELD["proxy", 1], ("decode:0", 9): ProcessHoldings(60, MIB)}), "descriptors",
         "decode:0 has 20 more"),
        (of_after(holdings=HELD | {("proxy", 1): ProcessHoldings(30, 500 * MIB)}), "memory", "proxy has 400 MiB more"),
        (of_after(segments=frozenset({"old", "new"})), "leftovers", "segment new"),
        (of_after(zombies=("77",)), "leftovers", "zombie 77"),
        (of_after(faults={"pontil_thread_failures_total": 2.0}), "own faults", "grew by 1"),
        (lambda: replace(FINE, faults=(*FINE.faults, UNREACHED), planned=5), "faults", "decode:0 had no turn"),
        (lambda: replace(FINE, planned=6), "faults", "2 faults were not reached"),
    ],
)  # fmt: skip
def test_each_breaks_by_what_it_looks_for(make: Callable[[], ChaosTrial], name: str, says: str) -> None:
    (check,) = [one for one in make().checks if one.name == name]
    assert not check.held and says in check.seen


def test_processes_that_were_replaced_are_no_findings() -> None:
    after = replace(
        FINE.after, holdings={("proxy", 1): HELD["proxy", 1], ("decode:0", 99): ProcessHoldings(44, 900 * MIB)}
    )
    assert broken(replace(FINE, after=after)) == []


KILLED_PROXY = FaultRecord(PlannedFault(5.0, KILL, "proxy:0", PROXY, 0.0), 5.0, 5.0, 8.0, survived=False)
STOPPED_PROXY = FaultRecord(PlannedFault(5.0, SHORT_STOP, "proxy:0", PROXY, 1.0), 5.0, 6.0, 8.0)
BROKEN = AnswerRecord("b", 4.0, 5.5, AnswerOutcome.LOST, "reset", broke=True)


@pytest.mark.parametrize(
    ("record", "fault", "outcome"),
    [
        (BROKEN, KILLED_PROXY, AnswerOutcome.CUT),
        (replace(BROKEN, broke=False), KILLED_PROXY, AnswerOutcome.LOST),
        (replace(BROKEN, ended=4.9), KILLED_PROXY, AnswerOutcome.LOST),
        (replace(BROKEN, ended=11.0), KILLED_PROXY, AnswerOutcome.LOST),
        (BROKEN, STOPPED_PROXY, AnswerOutcome.LOST),
        (BROKEN, FINE.faults[0], AnswerOutcome.LOST),
        (BROKEN, FaultRecord(KILLED_PROXY.planned, survived=False), AnswerOutcome.LOST),
    ],
)
def test_only_the_death_of_a_proxy_excuses_a_connection_that_broke(
    record: AnswerRecord, fault: FaultRecord, outcome: AnswerOutcome
) -> None:
    assert [one.outcome for one in judged([record], [fault])] == [outcome]


def test_what_was_continued_and_what_was_cut_off_is_counted_and_holds() -> None:
    cut = replace(BROKEN, outcome=AnswerOutcome.CUT)
    records = [*FINE.records, cut, replace(cut, headless=True), replace(FINE.records[0], continued=2)]
    check = answers_check(records)
    assert check.held and "1 of them continued after a break (2 breaks)" in check.seen
    assert "2 requests with nothing to continue were cut off with their proxy (1 of them streams" in check.seen


ROW = {"name": "x-1", "state": "closed", "prompt_tokens": 5, "completion_tokens": 10}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([ROW], None),
        ([ROW, ROW | {"name": "x-2", "state": "lost(proxy)"}], None),
        ([], "x-1 has 0 rows"),
        ([ROW, ROW], "x-1 has 2 rows"),
        ([ROW | {"state": "open"}], "x-1 has a row that is open"),
        ([ROW | {"completion_tokens": 11}], "x-1 says 5 and 10 tokens, and its row 5 and 11"),
        ([ROW | {"prompt_tokens": 4}], "its row 4 and 10"),
    ],
)
def test_with_several_proxies_each_answer_has_one_row(rows: list[dict[str, Any]], says: str | None) -> None:
    answered = replace(FINE.records[0], name="x-1")
    seen = replace(
        FINE, after=replace(FINE.after, ledger=None), records=(answered, BROKEN, FINE.records[1]), bills=tuple(rows)
    )
    (check,) = [one for one in seen.checks if one.name == "usage"]
    assert check.held == (says is None) and (says or "") in "".join(check.lines)
    assert ("1 replies have one row each" in check.seen) == check.held


def test_an_unexplained_death_shows_its_last_lines() -> None:
    crash = ExitFacts("proxy", 50.0, "crash", "crashed", ("boom", "bang"))
    (check,) = broken(replace(FINE, exits=(*FINE.exits, crash)))
    assert check.lines == ("proxy | boom", "proxy | bang")


GREEDY = FaultRecord(PlannedFault(60.0, GREED, "x", "caller", 5.0), 60.0, 65.0, 65.0)
FAIR = FairnessVerdict(5, 0, 0, 0.4, 0.1, 2.0)


def test_fairness_has_a_check_where_another_caller_was_greedy() -> None:
    greedy = replace(FINE, faults=(*FINE.faults, GREEDY), planned=5, verdict=FAIR)
    (check,) = [one for one in greedy.checks if one.name == "fairness"]
    assert broken(greedy) == [] and check.seen == FAIR.describe()
    for unfair in (replace(FAIR, late=1), replace(FAIR, refused=1, problems=("no room",)), replace(FAIR, sent=0)):
        (check,) = broken(replace(greedy, verdict=unfair))
        assert check.name == "fairness" and check.lines == unfair.problems


def test_a_greedy_callers_tokens_are_told_apart_by_the_rows_of_the_usage_log() -> None:
    """Cancelled requests are in the ledger and in no reply."""
    after = replace(FINE.after, ledger={"prompt_tokens": 999, "completion_tokens": 999, "open": 0})
    records = tuple(replace(one, name=f"x-{place}") for place, one in enumerate(FINE.records))
    rows = (ROW | {"name": "x-0"}, ROW | {"name": "x-2"})
    greedy = replace(
        FINE, after=after, records=records, faults=(*FINE.faults, GREEDY), planned=5, verdict=FAIR, bills=rows
    )
    assert broken(greedy) == []
    assert [one.name for one in broken(replace(greedy, bills=rows[:1]))] == ["usage"]
    assert broken(replace(greedy, bills=None)) == []
    assert [one.name for one in broken(replace(greedy, faults=FINE.faults, planned=4, verdict=None))] == ["usage"]
