# SPDX-License-Identifier: Apache-2.0
"""The places where the processor time of a seed goes."""

import cProfile
import pstats
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from seed_run import SeedReport

LINES = 45
# The parts of a seed by the function that does each, with all that it calls. Those that are indented are in others.
PARTS = {
    ("worker_process.py", "turn"): "turns of workers",
    ("hash_model.py", "run"): "  the model's arithmetic",
    ("event_loop.py", "turn"): "turns of proxies",
    ("thread_events.py", "happen"): "threads",
    ("clients.py", "received"): "clients",
    ("supervised_site.py", "look"): "supervisor",
    ("served_proxy.py", "begin"): "starts of proxies",
    ("engine_process.py", "begin"): "starts of workers",
    ("virtual_time.py", "note"): "  trace",
}


def run(work: Callable[[], SeedReport]) -> SeedReport:
    with cProfile.Profile() as profile:
        report = work()
    stats = pstats.Stats(profile).sort_stats("tottime")
    stats.print_stats(LINES)
    untyped: Any = stats
    for part, share in shares(untyped.stats).items():
        print(f"{share:6.1%} {part}")
    return report


def shares(stats: Mapping[tuple[str, int, str], Any]) -> dict[str, float]:
    """Return the share of each part, as far as it took place."""
    whole = sum(entry[2] for entry in stats.values())
    found = dict.fromkeys(PARTS.values(), 0.0)
    for (file, _, name), entry in stats.items():
        if part := PARTS.get((Path(file).name, name)):
            found[part] = max(found[part], entry[3] / whole)
    return found
