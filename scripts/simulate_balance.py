# SPDX-License-Identifier: Apache-2.0
"""Compare roles that follow the load (`launch --balance auto`) with every fixed split, in virtual time.

    python scripts/simulate_balance.py --seeds 1-1000 --rows balance.jsonl [--jobs 2] [--phase 60]

Each seed has two loads on four workers: one that shifts from prompts to answers and back, and a steady one. A line of
JSON for each load has the share of requests that kept both limits, of fixed splits and of roles that follow the load,
and the role changes. Fixed splits are tried from the likeliest on: none after one that kept all but 0.5 %; none whose
decode workers have no time for as many answers as the best one before kept, were they a fifth faster; and one from
which roles never changed is not tried again. Workers are slow, so that few tokens are simulated: a step takes 200 ms
and 8 ms a row. A load has 100 to 400 requests, so a share is some percent off by chance, and the best of three splits
is a little better than any is: sums tell, not one seed. Requests that wait many steps show late what they need, so that
what following gains depends on `--phase`, the seconds from one shift to the next.

With `--rows` the lines are added to this file, and what is there is not computed again: an end by ctrl+c loses the
seeds under way. Another state of the code, or another phase, wants another file. The last lines have the sums. Ends
with 1 if over all seeds the shifting loads gain nothing, or a steady one loses more than 5 % to the best fixed split on
average. Virtual time: other work on this machine changes nothing, and equal seeds give equal figures, but for
`cpu_seconds`.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("shifting", "steady")
# The share from which on no split can be better by what would matter.
ENOUGH = 0.995
Row = dict[str, Any]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", required=True, type=seeds, metavar="A-B", help="the first and the last seed, or one")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="loads of a seed")
    parser.add_argument("--phase", type=float, default=60.0, metavar="SECONDS", help="from one shift to the next")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="add lines here, and go on where it ends")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="loads at a time")
    return parser.parse_args()


def seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


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


def tried(task: tuple[int, str], phase: float) -> Row:
    """Return the figures of a load with phases of so many seconds."""
    import balance_trials

    seed, kind = task
    phases, began = getattr(balance_trials, kind)(seed, phase), time.process_time()
    found = balance_trials.outcome(balance_trials.FIRST, phases, seed, balance=True)
    shares = dict[int, float]()
    for prefill in balance_trials.likeliest(phases):
        if shares and balance_trials.most_kept(prefill, phases) <= max(shares.values()):
            continue
        if prefill == balance_trials.FIRST and not found.changes:
            shares[prefill] = found.share
        else:
            shares[prefill] = balance_trials.outcome(prefill, phases, seed, balance=False).share
        if shares[prefill] >= ENOUGH:
            break
    return {
        "seed": seed,
        "load": kind,
        "fixed": {f"{prefill}:{balance_trials.WORKERS - prefill}": share for prefill, share in sorted(shares.items())},
        "best": max(shares.values()),
        "balanced": found.share,
        "changes": [f"{at:.0f} {role}" for at, _, role in found.changes],
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def rows_of(path: Path | None) -> dict[tuple[int, str], Row]:
    """Return the whole lines of a file, by seed and load."""
    if path is None or not path.exists():
        return {}
    whole = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {(row["seed"], row["load"]): row for row in whole}


def sums(kind: str, rows: Sequence[Row]) -> Row:
    gains = [row["balanced"] - row["best"] for row in rows]
    return {
        "load": kind,
        "seeds": len(rows),
        "best_fixed": round(fmean(row["best"] for row in rows), 4),
        "balanced": round(fmean(row["balanced"] for row in rows), 4),
        "least_gain": round(min(gains), 4),
        "below_95": sum(row["balanced"] < 0.95 * row["best"] for row in rows),
        "better": sum(gain > 0 for gain in gains),
        "changes": round(fmean(len(row["changes"]) for row in rows), 2),
        "most_changes": max(len(row["changes"]) for row in rows),
        "most_turns": max(turns(row) for row in rows),
    }


def turns(row: Row) -> int:
    """Return how many changes went back from the one before."""
    roles = [change.split()[1] for change in row["changes"]]
    return sum(first != second for first, second in pairwise(roles))


def has_failed(told: Row) -> bool:
    if told["load"] == "shifting":
        return bool(told["balanced"] <= told["best_fixed"])
    return bool(told["balanced"] < 0.95 * told["best_fixed"])


def main() -> int:
    given = arguments()
    rows, tasks = rows_of(given.rows), [(seed, kind) for seed in given.seeds for kind in given.kinds]
    file = given.rows and given.rows.open("a")
    with ProcessPoolExecutor(given.jobs, get_context("spawn"), begin) as pool:
        for row in pool.map(partial(tried, phase=given.phase), [task for task in tasks if task not in rows]):
            rows[row["seed"], row["load"]] = row
            line = json.dumps(row)
            print(line, flush=True)
            if file:
                print(line, file=file, flush=True)
    told = [sums(kind, [rows[seed, kind] for seed in given.seeds]) for kind in given.kinds]
    for one in told:
        print(json.dumps(one))
    return int(any(map(has_failed, told)))


if __name__ == "__main__":
    sys.exit(main())
