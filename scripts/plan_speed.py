# SPDX-License-Identifier: Apache-2.0
"""Measure how many tokens of answers `pontil plan` simulates in a second of processor time, from a profile.

    python scripts/plan_speed.py --profile FILE [--repeats 3]

Each load is simulated so often, and the median counts: the start of the command is not in it.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.runtime.wire.simulated.install import install  # noqa: E402

# Before anything else of pontil is imported that keeps a clock.
install()

from pontil.launcher.tools.planner.plan_command import named_workers, plan  # noqa: E402
from pontil.launcher.tools.planner.prediction import Predictor  # noqa: E402
from pontil.launcher.tools.planner.profile_kinds import profiles_of  # noqa: E402

MIXED, PAIR, PAIRS = "--mixed 1", "--prefill 1 --decode 1 --disagg always", "--prefill 2 --decode 2 --disagg always"
SHORT, LONG = "--prompt-tokens 64 --output-tokens 96", "--prompt-tokens 512 --output-tokens 32"
LOADS = {
    "one stream, mixed": f"{MIXED} --concurrency 1 --requests 20 {SHORT}",
    "one stream, a pair": f"{PAIR} --concurrency 1 --requests 20 {SHORT}",
    "8 streams, mixed": f"{MIXED} --concurrency 8 --requests 64 {SHORT}",
    "8 streams, a pair": f"{PAIR} --concurrency 8 --requests 64 --prompt-tokens 256",
    "32 streams, mixed": f"{MIXED} --concurrency 32 --requests 160 {SHORT}",
    "32 streams, two pairs": f"{PAIRS} --concurrency 32 --requests 160 --prompt-tokens 256",
    "2 long prompts, mixed": f"{MIXED} --concurrency 2 --requests 60 {LONG}",
    "2 long prompts, a pair": f"{PAIR} --concurrency 2 --requests 60 {LONG}",
}


def options(words: list[str]) -> dict[str, Any]:
    """Return the options of a command line, as `plan` gets them."""
    with plan.make_context("plan", words) as context:
        return {name: value for name, value in context.params.items() if name not in ("files", "model", "replay")}


def measure(profile: Path, load: str) -> float:
    """Return the tokens of a second of processor time."""
    given = options(["--profile", str(profile), *load.split()])
    profiles = profiles_of([str(profile)], None)
    predictor, workers = Predictor(profiles, given, 1.0), named_workers(given, list(profiles))
    assert workers is not None, "each load names its workers"
    topology = predictor.topology(workers)
    began = time.thread_time()
    (row,) = predictor.rows(topology)
    return float(row["output_tokens"] / (time.thread_time() - began))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    for name, load in LOADS.items():
        found = statistics.median(measure(given.profile, load) for _ in range(given.repeats))
        print(f"{name}: {found:,.0f} tokens a second of processor time", flush=True)


if __name__ == "__main__":
    main()
