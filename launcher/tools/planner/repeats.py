# SPDX-License-Identifier: Apache-2.0
"""A load that was simulated several times: the figures in the middle, and how far apart they are."""

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import median_low
from typing import Any

from pontil.launcher.tools.bench.figures import Figures

# The figures of which the least and the greatest are told.
TOLD_APART = ("output_tokens_per_second", "tpot_ms_median", "ttft_ms_median", "ttft_ms_p99")


def typical(rows: Sequence[Figures]) -> Figures:
    """Return the figures of equal loads as one: of each the lower of those in the middle. Failures are those of the
    worst."""
    if len(rows) == 1:
        return rows[0]
    worst = max(rows, key=lambda row: int(row["failures"]))
    failed = {name: worst[name] for name in ("failures", "failure_reasons") if name in worst}
    apart = {name: [row[name] for row in rows if name in row] for name in TOLD_APART}
    spread = {name: [min(some), max(some)] for name, some in apart.items() if some}
    return middle(rows) | failed | {"spread": spread}


def middle(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the middle of what rows have under each name, in the order of the fullest."""
    fullest_first = sorted(rows, key=lambda row: -len(row))
    names = dict.fromkeys(chain.from_iterable(fullest_first))
    return {name: middle_of([row[name] for row in rows if name in row]) for name in names}


def middle_of(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Mapping):
        return middle(values)
    return median_low(values) if isinstance(values[0], int | float) else values[0]
