# SPDX-License-Identifier: Apache-2.0
"""The shortest prefix of a seed's faults that still shows a violation."""

from collections.abc import Callable

from seed_run import SeedReport


def shortest(report: SeedReport, run: Callable[[int], SeedReport]) -> tuple[int, SeedReport]:
    """Return the least number of faults with which the seed violates what the report says first, and the report of
    that run. `run` runs the seed with the first so many faults."""
    name = report.violations[0].partition(":")[0]
    for count in range(len(report.faults)):
        found = run(count)
        if any(one.startswith(name) for one in found.violations):
            return count, found
    return len(report.faults), report
