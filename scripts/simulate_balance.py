# SPDX-License-Identifier: Apache-2.0
"""Compare roles that follow the load (`launch --balance auto`) with every fixed split, in virtual time.

    python scripts/simulate_balance.py --seeds 1-500 --rows balance.jsonl [--jobs 2] [--phase 120]

Each seed has two loads on four workers: one that shifts from prompts to answers and back, and a steady one. A line of
JSON for each load has the share of requests that kept both limits, of fixed splits and of roles that follow the load,
and the role changes. Fixed splits are tried from the likeliest on: none after one that kept all but 0.5 %, none whose
decode workers have no time for as many answers as the best one before kept, were they a fifth faster, and one from
which roles never changed is not tried again. A fixed split that can no longer be the best one is `beaten`, and its
share is that of the requests until then. Workers are slow, so that little is simulated: a step takes 400 ms and 32 ms
a row, and the limit for each token is 800 ms. Requests that wait many steps show late what they need, so that what
following gains depends on `--phase`, the seconds from one shift to the next.

A load has 100 to 400 requests, so a share is some percent off by chance, and the best of three splits of one run is
better than any is. So loads that are alike are put together: of equal lengths, with rates in the same third. `known` is
the split that is best on the others of a load's kind, tried on this load, as somebody has it who knows the load before;
`kinds` are compared by the means of all their loads.

With `--rows` the lines are added to this file, and what is there is not computed again: an end by ctrl+c loses the
seeds under way. Another state of the code, or another phase, wants another file. The last lines have the sums. Ends
with 1 if over all seeds the shifting loads gain nothing, or a steady one loses more than 5 % to the best fixed split on
average. Virtual time: other work on this machine changes nothing, and equal seeds give equal figures, but for
`cpu_seconds`.
"""

import argparse
import gc
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
# The part of what a fixed split keeps that is to be kept.
BOUND = 0.95
Row = dict[str, Any]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", required=True, type=seeds, metavar="A-B", help="the first and the last seed, or one")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="loads of a seed")
    parser.add_argument("--phase", type=float, default=120.0, metavar="SECONDS", help="from one shift to the next")
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
    # Nothing that is there now is garbage, and what a trial leaves is collected after it.
    gc.freeze()
    gc.set_threshold(100_000)


def tried(task: tuple[int, str], phase: float) -> Row:
    """Return the figures of a load with phases of so many seconds."""
    import balance_trials

    seed, kind = task
    phases, began = getattr(balance_trials, kind)(seed, phase), time.process_time()
    found = balance_trials.outcome(balance_trials.FIRST, phases, seed, balance=True)
    shares, beaten = dict[int, float](), dict[int, float]()
    for prefill in balance_trials.likeliest(phases):
        best = max(shares.values(), default=0.0)
        if best >= ENOUGH or shares and balance_trials.most_kept(prefill, phases) <= best:
            continue
        one = found
        if prefill != balance_trials.FIRST or found.changes:
            one = balance_trials.outcome(prefill, phases, seed, balance=False, to_beat=best)
        (beaten if one.beaten else shares)[prefill] = one.share
    gc.collect()
    return {
        "seed": seed,
        "load": kind,
        "asked": balance_trials.kind_of(phases),
        "fixed": by_split(shares),
        "beaten": by_split(beaten),
        "best": max(shares.values()),
        "balanced": found.share,
        "changes": [f"{at:.0f} {role}" for at, _, role in found.changes],
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def by_split(shares: Mapping[int, float]) -> dict[str, float]:
    import balance_trials

    return {f"{prefill}:{balance_trials.WORKERS - prefill}": share for prefill, share in sorted(shares.items())}


def rows_of(path: Path | None) -> dict[tuple[int, str], Row]:
    """Return the whole lines of a file, by seed and load."""
    if path is None or not path.exists():
        return {}
    whole = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {(row["seed"], row["load"]): row for row in whole}


def sums(kind: str, rows: Sequence[Row]) -> Row:
    gains, known = [row["balanced"] - row["best"] for row in rows], [known_share(row, rows) for row in rows]
    ratios = [ratio(alike) for alike in by_kind(rows).values()]
    return {
        "load": kind,
        "seeds": len(rows),
        "best_fixed": mean(row["best"] for row in rows),
        "known_fixed": mean(known),
        "balanced": mean(row["balanced"] for row in rows),
        "least_gain": round(min(gains), 4),
        "below_95": sum(row["balanced"] < BOUND * row["best"] for row in rows),
        "below_95_known": sum(row["balanced"] < BOUND * share for row, share in zip(rows, known, strict=True)),
        "better": sum(gain > 0 for gain in gains),
        "better_known": sum(row["balanced"] > share for row, share in zip(rows, known, strict=True)),
        "kinds": len(ratios),
        "kinds_below_95": sum(one < BOUND for one in ratios),
        "least_of_kinds": round(min(ratios), 4),
        "changes": mean(len(row["changes"]) for row in rows),
        "most_changes": max(len(row["changes"]) for row in rows),
        "most_turns": max(turns(row) for row in rows),
    }


def mean(values: Iterable[float]) -> float:
    return round(fmean(values), 4)


def by_kind(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the loads that are alike together."""
    kinds = defaultdict[str, list[Row]](list)
    for row in rows:
        kinds[row["asked"]].append(row)
    return kinds


def share_of(split: str, row: Row) -> float:
    """Return the share that a split keeps of a load, or what it keeps at most where it was not tried to the end."""
    if split in row["fixed"]:
        return float(row["fixed"][split])
    return float(min(row["best"], row["beaten"].get(split, row["best"])))


def best_split(rows: Sequence[Row]) -> str:
    """Return the split that keeps most of some loads: of those that are equal the one that was tried most often."""
    splits: list[str] = sorted({split for row in rows for split in row["fixed"]})
    tries = {split: sum(split in row["fixed"] for row in rows) for split in splits}
    return max(splits, key=lambda split: (mean(share_of(split, row) for row in rows), tries[split]))


def known_share(row: Row, rows: Sequence[Row]) -> float:
    """Return the share that the split keeps of a load that is best on others like it; the best one where there are
    none."""
    others = [one for one in by_kind(rows)[row["asked"]] if one is not row]
    return share_of(best_split(others), row) if others else float(row["best"])


def ratio(alike: Sequence[Row]) -> float:
    """Return what following keeps of some loads, as a part of what the split keeps that is the best for all of them."""
    split = best_split(alike)
    return fmean(row["balanced"] for row in alike) / fmean(share_of(split, row) for row in alike)


def turns(row: Row) -> int:
    """Return how many changes went back from the one before."""
    roles = [change.split()[1] for change in row["changes"]]
    return sum(first != second for first, second in pairwise(roles))


def has_failed(told: Row) -> bool:
    if told["load"] == "shifting":
        return bool(told["balanced"] <= told["best_fixed"])
    return bool(told["balanced"] < BOUND * told["best_fixed"])


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
