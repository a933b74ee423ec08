# SPDX-License-Identifier: Apache-2.0
"""Compare roles that follow the load (`launch --balance auto`) with every fixed split, in virtual time.

    python scripts/simulate_balance.py --seeds 1-1000 [--jobs 2]

Each seed has two loads on four workers: one that shifts from prompts to answers and back, and a steady one. A line of
JSON for each load has the share of requests that kept both limits, of each fixed split and of roles that follow the
load, and the role changes. The last lines have the sums. Ends with 1 if over all seeds the shifting loads gain nothing,
or a steady one loses more than 5 % to the best fixed split on average. Virtual time: other work on this machine changes
nothing, and equal seeds give equal figures.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("shifting", "steady")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", required=True, metavar="A-B", help="the first and the last seed, or one")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="loads of a seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="seeds at a time")
    return parser.parse_args()


def begin() -> None:
    """Give this process a virtual world."""
    import logging

    sys.path[:0] = [str(ROOT), str(ROOT / "tests/support/checks")]
    import app  # noqa: F401
    from pontil.runtime.wire.simulated.install import install

    install()
    from pontil.runtime.wire.simulated.thread_events import use_events_for_threads

    use_events_for_threads()
    logging.disable(logging.CRITICAL)


def tried(seed: int, kinds: list[str]) -> list[dict[str, Any]]:
    """Return the figures of a seed's loads."""
    import balance_trials

    rows = []
    for kind in kinds:
        phases = getattr(balance_trials, kind)(seed)
        counts = range(1, balance_trials.WORKERS)
        fixed = [balance_trials.outcome(prefill, phases, seed, balance=False) for prefill in counts]
        found = balance_trials.outcome(2, phases, seed, balance=True)
        shares = {
            f"{prefill}:{balance_trials.WORKERS - prefill}": one.share
            for prefill, one in zip(counts, fixed, strict=True)
        }
        best = max(shares.values())
        rows.append(
            {
                "seed": seed,
                "load": kind,
                "fixed": shares,
                "best": best,
                "balanced": found.share,
                "changes": [f"{at:.0f} {role}" for at, _, role in found.changes],
            }
        )
    return rows


def main() -> int:
    given = arguments()
    first, _, last = given.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.jobs, get_context("spawn"), begin) as pool:
        for some in pool.map(partial(tried, kinds=list(given.kinds)), seeds):
            rows += some
            for row in some:
                print(json.dumps(row), flush=True)
    failed = False
    for kind in given.kinds:
        mine = [row for row in rows if row["load"] == kind]
        gains = [row["balanced"] - row["best"] for row in mine]
        best, balanced = fmean(row["best"] for row in mine), fmean(row["balanced"] for row in mine)
        told = {
            "load": kind,
            "seeds": len(mine),
            "best_fixed": round(best, 4),
            "balanced": round(balanced, 4),
            "least_gain": min(gains),
            "below_95": sum(row["balanced"] < 0.95 * row["best"] for row in mine),
            "changes": round(fmean(len(row["changes"]) for row in mine), 2),
        }
        print(json.dumps(told))
        failed = failed or (balanced <= best if kind == "shifting" else balanced < 0.95 * best)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
