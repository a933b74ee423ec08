# SPDX-License-Identifier: Apache-2.0
"""Pauses and the faults that they are attributed to."""

from pontil.launcher.tools.chaos.chaos_load import AnswerOutcome, AnswerRecord
from pontil.launcher.tools.chaos.disturber import FaultRecord
from pontil.launcher.tools.chaos.fault_plan import FILL, KILL, PROXY, PlannedFault
from pontil.launcher.tools.chaos.pause_table import PauseRow, pause_rows, table_lines


def record(sent: float, *arrivals: float) -> AnswerRecord:
    return AnswerRecord("a", sent, arrivals[-1], AnswerOutcome.SAME, "", arrivals, 1, len(arrivals))


def fault(variant: str, begun: float, recovered: float) -> FaultRecord:
    effects = {"failovers": 2, "failed_handoffs": 1, "failed_writes": 0}
    return FaultRecord(PlannedFault(begun, variant, "x", "decode", 1.0), begun, begun, recovered, effects=effects)


def test_a_pause_belongs_to_the_faults_during_which_it_was() -> None:
    records = [record(9.0, 9.5, 10.0, 12.0, 12.5), record(11.0, 11.5, 14.5, 30.0), record(50.0, 50.25, 50.5)]
    faults = [fault(KILL, 10.5, 13.0), fault(KILL, 60.0, 61.0), fault(FILL, 13.5, 15.0)]
    kill, fill, none = pause_rows(records, faults)
    # In the first kill the streams paused for 2 and 3 s, and in the second no stream ran.
    assert kill == PauseRow(KILL, 2, 3.0, 2.5, 0.5, 2.5, 4, 2, 0)
    assert (fill.times, fill.longest, fill.first_token) == (1, 15.5, None)
    assert none == PauseRow("none", 0, 0.5, 0.375, 0.5, None)


def test_faults_of_proxies_have_rows_of_their_own() -> None:
    killed = FaultRecord(PlannedFault(1.0, KILL, "proxy:1", PROXY, 0.0), 1.0, 1.0, 2.0)
    rows = pause_rows([record(0.5, 0.6, 1.9, 2.5)], [killed, fault(KILL, 2.2, 3.0)])
    assert [(row.fault, row.times) for row in rows] == [("kill", 1), ("kill, proxy", 1), ("none", 0)]
    assert [round(row.longest or 0.0, 3) for row in rows[:2]] == [0.6, 1.3]


def test_a_fault_that_did_not_take_place_and_a_stream_without_tokens_count_nothing() -> None:
    unreached = FaultRecord(PlannedFault(1.0, KILL, "x", "decode", 0.0))
    lost = AnswerRecord("a", 0.0, 1.0, AnswerOutcome.LOST, "gone")
    assert pause_rows([lost], [unreached]) == [PauseRow("none", 0, None, None, None, None)]


def test_the_table_has_a_line_for_each_row_in_columns() -> None:
    heading, kill, none = table_lines(
        [PauseRow(KILL, 3, 1.234, 0.05, None, 8.0, 4, 0, 0), PauseRow("none", 0, None, None, None, None)]
    )
    assert heading.split("  ")[0] == "fault" and " ".join(kill.split()) == "kill 3 1.23 s 50 ms 8.00 s 4 0 0"
    assert len(heading) == len(kill) == len(none) and none.split() == ["none"]
