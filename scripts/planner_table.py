# SPDX-License-Identifier: Apache-2.0
"""The table of what `pontil plan` predicted beside what was measured: of rows that scripts/bench_planner.py makes."""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Figures with the part by which a prediction may be wrong, and the one by which topologies are compared.
GOALS = {"output_tokens_per_second": 0.05, "tpot_ms_median": 0.05, "ttft_ms_median": 0.10, "ttft_ms_p99": 0.15}
SHORT_NAMES = dict(zip(GOALS, ("tokens/s", "ms per token", "first token p50", "first token p99"), strict=True))
SCORE, AS_GOOD = "e2e_ms_median", 0.02
# Predictions of a run: from the profile alone, by the machine's speed right before it, and by that before and after.
PREDICTED = (ALONE, BEFORE, AT_SPEED) = ("predicted", "predicted_before", "predicted_at_speed")
HEADINGS = ("from the profile", "by the speed before", "at the speed")


@dataclass(frozen=True, slots=True)
class ComparedFigures:
    """One figure of one configuration, over its runs; by predictions that know a speed, as if the machine had been as
    fast in each as when its profile was measured."""

    predicted: float
    measured: float
    spread: float
    goal: float

    @classmethod
    def of(cls, row: dict[str, Any], name: str, by: str = ALONE) -> "ComparedFigures":
        predicted, measured = row[name][ALONE][0], row[name]["measured"]
        values = [value * predicted / known for value, known in zip(measured, row[name][by], strict=True) if known]
        spread = (max(values) - min(values)) / 2
        return cls(predicted, statistics.median(values), spread, GOALS.get(name, AS_GOOD))

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1 if self.measured else 0.0

    @property
    def keeps_goal(self) -> bool:
        return abs(self.error) <= self.goal

    @property
    def is_good(self) -> bool:
        return self.keeps_goal or abs(self.predicted - self.measured) <= 2 * self.spread


def rows_of(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each configuration of these runs, in their order, whose figures are those of all its runs."""
    rows = []
    for case in dict.fromkeys((run["topology"], run["load"]) for run in runs):
        some = [run for run in runs if (run["topology"], run["load"]) == case]
        row: dict[str, Any] = {"topology": case[0], "load": case[1], "slowdowns": [run["slowdown"] for run in some]}
        for name in (*GOALS, SCORE):
            row[name] = {kind: [run[kind][name] for run in some] for kind in ("measured", *PREDICTED)}
        rows.append(row)
    return rows


def best_found(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, bool, str, str]]:
    """Yield for each load with several topologies whether the predicted best is the best, with both names: one that is
    measured to be as good as the best, within the noise, is as well."""
    for load in dict.fromkeys(row["load"] for row in rows):
        some = {row["topology"]: ComparedFigures.of(row, SCORE) for row in rows if row["load"] == load}
        if len(some) > 1:
            chosen = min(some, key=lambda name: some[name].predicted)
            best = min(some, key=lambda name: some[name].measured)
            noise = max(AS_GOOD * some[best].measured, 2 * max(some[best].spread, some[chosen].spread))
            yield load, some[chosen].measured - some[best].measured <= noise, chosen, best


def compared(row: dict[str, Any], name: str) -> str:
    """Return a cell: the errors of all predictions, and a mark where the last one is no good."""
    seen, *_, at_speed = each = [ComparedFigures.of(row, name, by) for by in PREDICTED]
    errors, mark = ", ".join(f"{one.error:+.0%}" for one in each), "" if at_speed.is_good else " **wrong**"
    return f"{seen.predicted:g} / {seen.measured:g} ({errors}){mark}"


def report(rows: Sequence[dict[str, Any]], profile: Path) -> list[str]:
    """Return the table in Markdown, and what it says where predictions are wrong."""
    about = json.loads(profile.read_text())["about"]
    lines = [
        f"Predicted / measured of {about['model']} on {about['processor']}, {about['kernels']}, with the errors "
        f"{', '.join(HEADINGS)} of the machine.",
        "",
        "| workers | load | " + " | ".join(SHORT_NAMES.values()) + " | speed |",
        "|---" * (len(GOALS) + 3) + "|",
    ]
    for row in rows:
        cells = " | ".join(compared(row, name) for name in GOALS)
        speeds = f"{min(row['slowdowns']):.2f} to {max(row['slowdowns']):.2f}"
        lines.append(f"| {row['topology']} | {row['load']} | {cells} | {speeds} |")
    headings = " | ".join(f"{heading}: within it, or the noise | median error" for heading in HEADINGS)
    lines += ["", f"| figure | goal | {headings} | worst |", "|---" * (2 * len(HEADINGS) + 3) + "|"]
    for name, goal in GOALS.items():
        cells = " | ".join(cell for by in PREDICTED for cell in kept(rows, name, by))
        lines.append(f"| {SHORT_NAMES[name]} | {goal:.0%} | {cells} | {worst(rows, name)} |")
    found = list(best_found(rows))
    if found:
        lines += ["", f"The best workers were found for {sum(good for _, good, _, _ in found)} of {len(found)} loads."]
        lines += [f"- {load}: {chosen} instead of {best}" for load, good, chosen, best in found if not good]
    return lines


def kept(rows: Sequence[dict[str, Any]], name: str, by: str) -> tuple[str, str]:
    """Return how many predictions keep the goal, and how many are good, and the median of errors."""
    some = [ComparedFigures.of(row, name, by) for row in rows]
    middle = statistics.median(abs(one.error) for one in some)
    strict, good = sum(one.keeps_goal for one in some), sum(one.is_good for one in some)
    return f"{strict}, {good} of {len(some)}", f"{middle:.1%}"


def worst(rows: Sequence[dict[str, Any]], name: str) -> str:
    """Return the largest error at the machine's speed, and where."""
    some = {f"{row['topology']}, {row['load']}": ComparedFigures.of(row, name, AT_SPEED).error for row in rows}
    case = max(some, key=lambda one: abs(some[one]))
    return f"{some[case]:+.0%} ({case})"
