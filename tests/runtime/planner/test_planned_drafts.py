# SPDX-License-Identifier: Apache-2.0
"""A draft model in virtual time: what its steps take by what they do, and a policy that has learned."""

from dataclasses import replace
from typing import Any

import pytest
from recorded_profile import BASE, READ, ROW, small_profile
from tiny import sequence
from virtual_fork import in_virtual_time

from pontil.runtime.engine.sequences.batch import Span
from pontil.runtime.planner.device_profile import DraftTimes
from pontil.runtime.planner.planned_drafts import DraftCosts, KnownShares
from pontil.runtime.planner.planned_site import PlannedSite, PlannedTopology, planned_model
from pontil.runtime.planner.step_costs import StepWork
from pontil.runtime.planner.trial import PlannedLoad, PlannedTrial

# A step that guesses takes 1 ms, 0.1 ms for each position before, and 2 ms more for each sequence; text 0.5 ms a row.
GUESSES = tuple(
    (rows, rows * context, 1.0 + 0.1 * rows * context + 2.0 * rows) for rows in (1.0, 4.0) for context in (0, 8)
)
READS = tuple((rows, 1.0 + 0.5 * rows) for rows in (1.0, 2.0, 64.0))
TIMES = DraftTimes("small", 1024, 1 << 18, 0.1, GUESSES, READS)
PROMPT, ANSWER, MOST = 64, 96, 4


@pytest.mark.parametrize(
    ("rows", "drawing", "before", "milliseconds"),
    [(1, 1, 0, 3.0), (2, 2, 20, 7.0), (32, 0, 0, 17.0), (2, 1, 40, 3.0 + 0.5 + 4.0), (33, 1, 0, 3.0 + 16.0)],
)
def test_rows_from_which_nothing_is_drawn_take_what_they_add_to_a_text(
    rows: int, drawing: int, before: int, milliseconds: float
) -> None:
    assert DraftCosts(TIMES).step(rows, drawing, before) * 1e3 == pytest.approx(milliseconds)


def test_rows_that_verify_guesses_read_their_context_once() -> None:
    verified = StepWork.of([Span(sequence("a", [5] * 8), 11, 5, (1, 2, 3, 4))])
    assert verified == StepWork(5, 16.0, 0, 0.0)
    apart = StepWork.of([Span(sequence(name, [5] * 8), 15, 1) for name in "abcde"])
    assert apart == StepWork(5, 80.0, 0, 0.0)


def test_a_worker_that_has_served_knows_how_often_guesses_are_right() -> None:
    shares = KnownShares(0.9)
    assert shares.expected("a", ("model", 0)) == pytest.approx(0.9)
    for _ in range(3):
        shares.add("a", ("model", 0), 4, 0)
    # A stream that is unlike the others is soon known, and they are hardly doubted for it.
    assert shares.expected("a", ("model", 0)) < 0.6 < 0.84 < shares.expected("b", ("model", 0))


def test_each_answer_comes_as_fast_as_its_steps_and_guesses_from_the_first_one_on() -> None:
    """Steps of one row take 11 ms and of five 15 ms, and guesses next to nothing: as many are made as there may be."""

    def work() -> list[dict[str, Any]]:
        draft = DraftTimes("small", 1024, 1 << 18, 0.1, ((1.0, 0.0, 0.2), (64.0, 0.0, 6.0)), ((1.0, 0.2), (64.0, 1.0)))
        model = planned_model(replace(small_profile(), draft=draft), drafts=True, guesses=MOST, accepted=1.0)
        site = PlannedSite(PlannedTopology(0, 0, 1, "auto"), model, 1)
        asked = (([100 + number, *range(100, 99 + PROMPT)], ANSWER) for number in range(3))
        report = PlannedTrial(site, PlannedLoad(3, 1), asked).run()
        site.close()
        return [{"arrivals": one.arrivals, "tokens": one.tokens} for one in report.requests]

    answers = in_virtual_time(work)
    for one in answers:
        assert one["tokens"] == ANSWER
        # Behind the prompt a text is read beside one plain step, or before the first guesses.
        steps = -(-(ANSWER - 1) // (1 + MOST))
        assert steps <= len(one["arrivals"]) - 1 <= steps + 1
        reads = READ * (PROMPT + ANSWER / 2)
        step = BASE + ROW * (1 + MOST) + reads + 0.2 * MOST + 0.1
        assert one["arrivals"][-1] - one["arrivals"][0] == pytest.approx(steps * step * 1e-3, rel=0.06)
    first, *later = (one["arrivals"][-1] - one["arrivals"][0] for one in answers)
    assert all(first == pytest.approx(other, rel=0.03) for other in later)
