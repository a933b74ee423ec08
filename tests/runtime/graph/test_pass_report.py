# SPDX-License-Identifier: Apache-2.0
"""Merging the reports of passes."""

from itertools import permutations

from speech_graph import STATES

from pontil.runtime.graph.pass_report import GraphProgress, PassReport
from pontil.runtime.graph.stream_buffer import StreamPosition

WORKERS = {"alone": {"w0"}, "shared": {"w0", "w1"}}


def progress() -> GraphProgress:
    return GraphProgress(WORKERS.__getitem__)


def test_a_pass_is_complete_when_all_its_workers_have_reported() -> None:  # E5
    found = progress()
    assert not found.take(PassReport("talker", "shared", 0, "w0"))
    assert not found.take(PassReport("talker", "shared", 0, "w0")), "a repeated report completes nothing"
    assert found.take(PassReport("talker", "shared", 0, "w1"))
    assert found.of("talker").passes == 1


def test_the_reported_walk_is_adopted_before_completeness_is_asked() -> None:  # E5
    """Under the walk before, which ran on one worker, the first report would have completed the pass."""
    found = progress()
    assert found.take(PassReport("talker", "alone", 0, "w0"))
    assert not found.take(PassReport("talker", "shared", 1, "w0")) and found.of("talker").walk == "shared"
    assert found.take(PassReport("talker", "shared", 1, "w1"))


def test_figures_merge_by_maximum_and_walks_by_the_last_writer() -> None:  # E5
    reports = (
        PassReport(
            "talker", "alone", 0, "w0", {"frames": 2}, {"frames": 1}, {STATES.key: StreamPosition(1, "a")}, {"lm": 3},
            {"code2wav": "before"},
        ),
        PassReport(
            "talker", "alone", 1, "w0", {"frames": 3}, {"frames": 2}, {STATES.key: StreamPosition(2, "b", 1)},
            {"lm": 4}, {"code2wav": "after"},
        ),
    )  # fmt: skip
    found = progress()
    for report in (*reports, *reports):
        found.take(report)
    talker = found.of("talker")
    assert talker.produced == {"frames": 2} and talker.kv_lengths == {"lm": 4}
    assert talker.positions == {STATES.key: StreamPosition(2, "b", 1)}
    assert talker.token_counts == {"frames": 5}, "each pass counts once"
    assert found.consumer_walks == {"code2wav": "after"}


def test_who_emitted_nothing_changes_nothing() -> None:  # E5
    found = progress()
    found.take(PassReport("talker", "alone", 0, "w0", produced={"frames": 4}, consumer_walks={"code2wav": "chunk"}))
    found.take(PassReport("talker", "alone", 1, "w0"))
    assert found.of("talker").produced == {"frames": 4} and found.consumer_walks == {"code2wav": "chunk"}


def test_an_edge_that_two_workers_report_counts_once() -> None:  # A2, E5
    parts = (
        PassReport("talker", "shared", 0, "w0", {"frames": 3}, {"frames": 1}),
        PassReport("talker", "shared", 0, "w1", {"frames": 3}, {"frames": 1}, is_done=True),
    )
    for order in permutations(parts):
        found = progress()
        assert [found.take(report) for report in order] == [False, True]
        assert found.of("talker").token_counts == {"frames": 3} and found.of("talker").is_done


def test_a_worker_may_be_a_pass_ahead_of_the_others_reports() -> None:  # E5
    """It asks nobody inside a loop, so its next report may overtake another worker's."""
    reports = [
        PassReport("talker", "shared", number, worker, {"f": 1}) for number in range(3) for worker in ("w0", "w1")
    ]
    for order in permutations(reports):
        found = progress()
        assert sum(found.take(report) for report in (*order, *order)) == 3
        assert found.of("talker").passes == 3 and found.of("talker").token_counts == {"f": 3}
        assert not found.of("talker").open and not found.of("talker").ahead


def test_a_late_report_does_not_bring_back_an_earlier_walk() -> None:  # E5
    found = progress()
    found.take(PassReport("talker", "shared", 1, "w0", consumer_walks={"code2wav": "after"}))
    found.take(PassReport("talker", "alone", 0, "w0", consumer_walks={"code2wav": "before"}))
    assert found.of("talker").walk == "shared" and found.consumer_walks == {"code2wav": "after"}
