# SPDX-License-Identifier: Apache-2.0
"""The table of planner errors: a prediction is good within its goal or within the noise of all rounds."""

import json
from pathlib import Path
from typing import Any

from planner_table import ALONE, AT_SPEED, BEFORE, GOALS, SCORE, ComparedFigures, best_found, report, rows_of

RATE = "output_tokens_per_second"


def runs(topology: str, predicted: float, *measured: float, slowdowns: tuple[float, ...] = ()) -> list[dict[str, Any]]:
    """Return a run for each of these figures, all of which have the same value, on a machine that has these speeds."""
    rows = []
    for number, value in enumerate(measured):
        slowdown = slowdowns[number] if slowdowns else 1.0
        figures = {"measured": value, ALONE: predicted, BEFORE: predicted, AT_SPEED: predicted * slowdown}
        named = {kind: dict.fromkeys((*GOALS, SCORE), one) for kind, one in figures.items()}
        rows.append({"topology": topology, "load": "8 streams", "round": number, "slowdown": slowdown, **named})
    return rows


def test_a_row_has_the_runs_of_all_rounds_and_loads_stay_apart() -> None:
    first, second = runs("1 mixed", 100, 90, 110, 100), runs("1P1D", 50, 40, 60, 50)
    turns = [run for both in zip(first, second, strict=True) for run in both]
    assert [row["topology"] for row in rows_of(turns)] == ["1 mixed", "1P1D"]
    assert rows_of(turns)[1][RATE]["measured"] == [40, 60, 50]


def test_a_prediction_is_good_within_the_goal_or_twice_the_spread() -> None:
    def is_good(predicted: float, *measured: float) -> bool:
        (row,) = rows_of(runs("1 mixed", predicted, *measured))
        return ComparedFigures.of(row, RATE).is_good

    assert is_good(104, 100, 100, 100) and not is_good(106, 100, 100, 100)
    (noisy,) = rows_of(runs("1 mixed", 120, 90, 100, 110))
    assert not ComparedFigures.of(noisy, RATE).keeps_goal
    # Half the distance of 90 and 110 is 10.
    assert is_good(120, 90, 100, 110) and not is_good(121, 90, 100, 110)


def test_at_the_speed_of_the_machine_a_slow_round_is_no_noise() -> None:
    (row,) = rows_of(runs("1 mixed", 100, 100, 200, 300, slowdowns=(1, 2, 3)))
    at_speed = ComparedFigures.of(row, RATE, AT_SPEED)
    assert (at_speed.measured, at_speed.spread, at_speed.error) == (100, 0, 0)
    assert ComparedFigures.of(row, RATE).spread == 100


def test_the_best_of_a_load_is_found_if_what_was_chosen_is_as_good_within_the_noise() -> None:
    def found(*some: list[dict[str, Any]]) -> list[tuple[bool, str, str]]:
        return [tuple(rest) for _, *rest in best_found(rows_of([run for one in some for run in one]))]  # type: ignore[misc]

    chosen, best = runs("1 mixed", 90, 110, 110, 110), runs("1P1D", 100, 100, 100, 100)
    assert found(chosen, best) == [(False, "1 mixed", "1P1D")]
    assert found(runs("1 mixed", 90, 105, 110, 115), best) == [(True, "1 mixed", "1P1D")]
    # One topology alone is no choice.
    assert found(best) == []


def test_the_table_marks_what_is_wrong_at_the_speed_of_the_machine(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"about": {"model": "m", "processor": "p", "kernels": "k"}}))
    rows = rows_of([*runs("1 mixed", 100, 100, 100, 100), *runs("1P1D", 150, 100, 101, 102)])
    lines = report(rows, profile)
    assert lines[0].startswith("Predicted / measured of m on p, k")
    assert [line.count("**wrong**") for line in lines if line.startswith(("| 1 mixed", "| 1P1D"))] == [0, len(GOALS)]
    assert any(line.startswith("| tokens/s | 5% | 1, 1 of 2 |") for line in lines)
