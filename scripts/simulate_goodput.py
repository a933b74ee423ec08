# SPDX-License-Identifier: Apache-2.0
"""Compare sites of the world by the requests per second that they serve within a limit, each worker on a device of its
own whose steps take as long as they were measured to take (docs/internals/world.md).

    python scripts/simulate_goodput.py --steps 1=14.4,8=14.8,32=53.3,256=284.2 [--ratios 1:2 0:3] [--limits 30 40]

--steps are milliseconds of a step by its rows, as scripts/bench_engine.py prints them: of a prompt of 256 tokens, and
of so many sequences that decode. A ratio is P:D prefill and decode workers, or 0:D mixed ones. Requests have 256 tokens
in and 64 out and come as a Poisson process; 90 % of them have to keep a limit by the median time between their tokens,
and --first by the time to the first one.

Prints a line of JSON for each ratio and limit: the highest rate, within a twentieth, what share kept both limits there,
and the medians of both times. Virtual time: other work on this machine changes nothing, and equal seeds give equal
figures. Ends with 1 after a violation.

With --batch LINES each ratio is tried at --rate twice, without and with a batch of so many lines beside the requests: a
line of JSON for each has the time to the first token, and how much of the idle seats' time the lines had. The batch has
to have more lines than are answered meanwhile.
"""

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from simulate import model_for

if TYPE_CHECKING:
    from engine_process import TinyModel


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", required=True, metavar="ROWS=MS,…", help="time of a step by its rows")
    parser.add_argument("--ratios", nargs="+", default=["1:2", "0:3"], metavar="P:D")
    parser.add_argument("--limits", nargs="+", type=float, default=[30.0, 40.0], metavar="MS")
    parser.add_argument(
        "--first", type=float, default=2000.0, metavar="MS", help="limit of the time to the first token"
    )
    parser.add_argument("--requests", type=int, default=120, help="requests of a trial")
    parser.add_argument("--block", type=float, default=0.1, metavar="MS", help="time to pull a block of KV")
    parser.add_argument("--share", type=float, default=0.9, help="share of the requests that keep the limit")
    parser.add_argument("--rate", type=float, default=1.0, help="the rate at which the search begins")
    parser.add_argument("--batch", type=int, default=0, metavar="LINES", help="a batch beside the requests")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def beside_a_batch(given: argparse.Namespace, model: "TinyModel", ratio: str) -> list[str]:
    """Print what requests get without and beside a batch; return what was violated."""
    from batch_flood import FloodTimes, flooded
    from seed_children import told_by_a_child

    violations: list[str] = []
    for lines in (0, given.batch):
        work = partial(flooded, ratio, model, given.rate, given.requests, given.seed, lines)
        found = FloodTimes(**told_by_a_child(work))
        figures = {
            "ratio": ratio,
            "requests_per_second": given.rate,
            "lines": lines,
            "answered_once": found.once,
            "first_ms": round(median(found.first) * 1e3),
            "first_p99_ms": round(found.first_p99 * 1e3),
            "between_ms": round(median(found.between) * 1e3, 1),
            "idle_seats_used": round(found.used / max(1, found.idle), 4),
        }
        print(json.dumps(figures), flush=True)
        violations += found.violations
    return violations


def main() -> int:
    given = arguments()
    violations: list[str] = []
    with tempfile.TemporaryDirectory(prefix="pontil-model-") as folder:
        model = model_for(Path(folder))
        from goodput import TrialTimes, served, use
        from seed_children import told_by_a_child
        from step_profile import StepProfile, highest_rate

        use(StepProfile.read(given.steps), given.block / 1e3)
        if given.batch:
            violations += [one for ratio in given.ratios for one in beside_a_batch(given, model, ratio)]
            given.ratios = []
        first = given.first / 1e3
        for ratio in given.ratios:
            tried: dict[float, TrialTimes] = {}

            def trial(rate: float, ratio: str = ratio, tried: dict[float, TrialTimes] = tried) -> TrialTimes:
                if rate not in tried:
                    work = partial(served, ratio, model, rate, given.requests, given.seed)
                    tried[rate] = TrialTimes(**told_by_a_child(work))
                return tried[rate]

            for limit in given.limits:
                between = limit / 1e3

                def holds(one: TrialTimes, between: float = between) -> bool:
                    return bool(one.share(between, first) >= given.share)

                rate, found = highest_rate(trial, holds, given.rate)
                figures = {
                    "ratio": ratio,
                    "limit_ms": limit,
                    "first_limit_ms": given.first,
                    "requests_per_second": round(rate, 2),
                    "share": round(found.share(between, first), 3),
                    "between_ms": round(median(found.between or [0.0]) * 1e3, 1),
                    "first_ms": round(median(found.first or [0.0]) * 1e3),
                }
                print(json.dumps(figures), flush=True)
            violations += [one for each in tried.values() for one in each.violations]
    for one in violations:
        print(one)
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
