# SPDX-License-Identifier: Apache-2.0
"""The places where the processor time of a seed goes."""

import cProfile
import pstats
from collections.abc import Callable

from seed_run import SeedReport

LINES = 45


def run(work: Callable[[], SeedReport]) -> SeedReport:
    with cProfile.Profile() as profile:
        report = work()
    pstats.Stats(profile).sort_stats("tottime").print_stats(LINES)
    return report
