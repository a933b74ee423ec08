# SPDX-License-Identifier: Apache-2.0
"""Compare what `pontil plan` predicts with what `pontil bench` sees of real launches on this machine.

    python scripts/bench_planner.py --profile FILE --model NAME [--repeats 3]

Each configuration is predicted from the profile before it is launched. It then has the same load so many times; a
figure's median over these counts, and its spread is half the distance of their least and greatest. The table has the
prediction, the median, the error, and how many spreads that is: within two it cannot be told from noise. Run it on a
machine that does nothing else, or say so beside the figures.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.launcher.tools.planner.profiled_launch import launched  # noqa: E402

APP = Path(__file__).resolve().parent.parent / "app.py"
FIGURES = ("ttft_ms_median", "ttft_ms_p99", "tpot_ms_median", "tpot_ms_p99", "output_tokens_per_second")
PLAIN = ("--no-lend-cores",)
SHORT, LONG = ("--prompt-tokens", "64", "--output-tokens", "48"), ("--prompt-tokens", "512", "--output-tokens", "32")


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """One configuration: the flags of its launch and of its plan, and the load on both."""

    launch: tuple[str, ...]
    plan: tuple[str, ...]
    load: tuple[str, ...]


MIXED = (("--role", "mixed", "--mixed", "cpu:0"), ("--mixed", "1"))
TWO = (("--role", "mixed", "--mixed", "cpu:0,cpu:1"), ("--mixed", "2"))
PAIR = (("--prefill", "cpu:0", "--decode", "cpu:1", "--disagg", "always"), ("--prefill", "1", "--decode", "1"))
LOADS = (
    ("--concurrency", "1", "--requests", "6", *SHORT),
    ("--concurrency", "4", "--requests", "12", *SHORT),
    ("--concurrency", "8", "--requests", "24", *SHORT),
    ("--concurrency", "2", "--requests", "6", *LONG),
    ("--request-rate", "1", "--requests", "20", *SHORT),
)
CASES = [
    PlannedCase(launch, plan if plan[0] != "--prefill" else (*plan, "--disagg", "always"), load)
    for launch, plan in (MIXED, TWO, PAIR)
    for load in LOADS
]


def run(*words: str) -> dict[str, Any]:
    """Return the first row that a command prints. A run of which some requests fail ends with 1."""
    done = subprocess.run([sys.executable, str(APP), *words, "--json"], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    return row


def compared(case: PlannedCase, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each figure of a configuration."""
    predicted = run("plan", "--profile", given.profile, *case.plan, *case.load)
    with launched([*case.launch, "--model", given.model, *PLAIN]) as launch:
        seen = [run("bench", launch.url, *case.load, "--seed", str(one)) for one in range(given.repeats)]
    for name in FIGURES:
        values = [row[name] for row in seen]
        real, spread = statistics.median(values), (max(values) - min(values)) / 2
        yield {
            "launch": " ".join(case.plan),
            "load": " ".join(case.load),
            "figure": name,
            "predicted": predicted[name],
            "measured": real,
            "error": round(predicted[name] / real - 1, 3) if real else None,
            "spreads": round(abs(predicted[name] - real) / spread, 1) if spread else None,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", required=True, metavar="FILE")
    parser.add_argument("--model", required=True, metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3, metavar="COUNT", help="runs of each load")
    parser.add_argument("--cases", type=int, nargs="*", metavar="NUMBER", help="these configurations only, from 0")
    given = parser.parse_args()
    rows = list[dict[str, Any]]()
    for case in CASES if given.cases is None else [CASES[number] for number in given.cases]:
        for row in compared(case, given):
            print(json.dumps(row), flush=True)
            rows.append(row)
    for name in FIGURES:
        errors = [abs(row["error"]) for row in rows if row["figure"] == name and row["error"] is not None]
        print(json.dumps({"figure": name, "configurations": len(errors), "median_error": statistics.median(errors)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
