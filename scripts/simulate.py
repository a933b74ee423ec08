# SPDX-License-Identifier: Apache-2.0
"""Run the whole system in one process and in virtual time, from one seed after the other (docs/internals/world.md).

The last line has the sums and a hash of all traces: equal seeds have equal hashes. Ends with 1 after a violation.
"""

import argparse
import gc
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine_process import TinyModel
    from seed_run import SeedReport

ROOT = Path(__file__).resolve().parent.parent
# Violations of a seed that are printed.
MOST_SHOWN = 5
SIZES = (
    "--prefill", "--decode", "--mixed", "--proxies", "--embed", "--rerank", "--stages", "--requests", "--faults",
    "--changes", "--hosts", "--tiers", "--keys", "--kept-kv", "--prefill-ranks", "--decode-ranks",
    "--data-parallel", "--gates", "--adapters", "--swaps", "--kept",
)  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the whole system from seeds, in virtual time.")
    parser.add_argument("--seeds", required=True, metavar="A-B", help="the first and the last seed, or one")
    for flag in SIZES:
        parser.add_argument(flag, type=int, metavar="N", help=f"{flag[2:]} of a seed")
    parser.add_argument("--kinds", metavar="K,K", help="faults of these kinds only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="seeds at a time")
    parser.add_argument(
        "--past", metavar="NAME", help="have a fault of tests/world/past, in a copy; all: each by turns"
    )
    parser.add_argument("--first", action="store_true", help="end at the first seed with a violation")
    parser.add_argument("--trace", metavar="FILE", help="write every event of the seeds to a file")
    parser.add_argument(
        "--hashes", metavar="FILE", default=os.devnull, help="write each seed with the hash of its trace to a file"
    )
    parser.add_argument(
        "--page", metavar="FILE", help="write the live page with a recording of one seed, to look at with a slider"
    )
    parser.add_argument("--profile", action="store_true", help="show where the time of one seed goes")
    given = parser.parse_args()
    if given.page is not None and (given.past or not given.seeds.isdecimal()):
        parser.error("--page records one seed: say --seeds N")
    return given


def name_of(flag: str) -> str:
    return flag[2:].replace("-", "_")


def model_for(folder: Path) -> "TinyModel":
    """Import the product, with stand-ins for what is replaced, and make what all seeds share."""
    sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / room) for room in ("world", "support/models"))]
    # Nothing of what is imported is garbage.
    gc.disable()
    # Each of these before the next: the checkout as package pontil, the stand-ins, then what keeps what it imports.
    import_module("app")
    import_module("install").install()
    made: TinyModel = import_module("shared_model").read(folder)
    return made


def with_past(given: argparse.Namespace, seeds: range) -> int:
    """Run the seeds in a copy of the checkout that has a fault of the past, or in one after the other."""
    sys.path.insert(0, str(ROOT / "tests/world"))
    import past_faults

    sizes = [f"{flag}={size}" for flag in SIZES if (size := getattr(given, name_of(flag))) is not None]
    more = [*sizes, f"--jobs={given.jobs}", *([f"--kinds={given.kinds}"] if given.kinds else [])]
    with tempfile.TemporaryDirectory(prefix="pontil-past-") as folder:
        try:
            if given.past == "all":
                return past_faults.run_all(Path(folder), seeds, more)
            code, said = past_faults.run_past(given.past, Path(folder), seeds, [*more, *["--first"] * given.first])
        except past_faults.UnusablePatchError as error:
            print(error, file=sys.stderr)
            return 2
    print(said, end="")
    return code


def main() -> int:
    given = arguments()
    low, _, high = given.seeds.partition("-")
    seeds = range(int(low), int(high or low) + 1)
    if given.past:
        return with_past(given, seeds)
    with tempfile.TemporaryDirectory(prefix="pontil-model-") as folder:
        model = model_for(Path(folder))
        from seed_children import SeedChild, reports
        from seed_run import run_seed
        from shrinking import shortest
        from site_plan import SitePlan

        # Has every module do what it does once: no seed pays for it.
        run_seed(0, SitePlan(1, 1, 0, 1, requests=4, faults=0, changes=0), model)
        names = [name_of(flag) for flag in SIZES]
        sizes: dict[str, Any] = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
        if given.kinds:
            sizes["kinds"] = tuple(given.kinds.split(","))
        plan = SitePlan(**sizes)

        def recorded(seed: int) -> "SeedReport":
            from recording import SeedRecorder

            recorder = SeedRecorder()
            report = run_seed(seed, plan, model, recorder)
            Path(given.page).write_text(recorder.page(f"Seed {seed} of the world"))
            return report

        def run_again(work: "Callable[[int, int], SeedReport]", seed: int, most: int) -> "SeedReport":
            return SeedChild(partial(work, seed, most)).report(seed)

        def work(seed: int, most: int | None = None) -> "SeedReport":
            if given.page is not None and most is None:
                return recorded(seed)
            if given.profile:
                import profiled

                return profiled.run(lambda: run_seed(seed, plan, model))
            with open(os.devnull if given.trace is None or most is not None else given.trace, "a") as file:
                return run_seed(seed, plan, model, file, most)

        if given.trace is not None:
            Path(given.trace).unlink(missing_ok=True)
        sums = Sums()
        for report in reports(seeds, 1 if given.trace else max(1, given.jobs), work):
            sums.add(report)
            if report.violations:
                show(report, *shortest(report, partial(run_again, work, report.seed)))
                if given.first:
                    break
        Path(given.hashes).write_text(sums.hashes)
        print(sums)
        return int(sums.violated > 0)


class Sums:
    """The figures of the last line."""

    def __init__(self) -> None:
        self.seeds = self.requests = self.tokens = self.violated = 0
        self.seconds = self.cpu = self.loaded = 0.0
        self.hash, self.hashes = hashlib.sha256(), ""

    def add(self, report: "SeedReport") -> None:
        self.seeds, self.requests, self.tokens = (
            self.seeds + 1, self.requests + report.requests, self.tokens + report.tokens,
        )  # fmt: skip
        self.seconds, self.cpu = self.seconds + report.seconds, self.cpu + report.cpu
        self.loaded += report.loaded
        self.violated += bool(report.violations)
        self.hash.update(report.trace.encode())
        self.hashes += f"{report.seed} {report.trace}\n"

    def __str__(self) -> str:
        speed = self.tokens / self.loaded if self.loaded else 0.0
        return (
            f"{self.cpu / self.seeds:.2f} CPU s a seed, {self.loaded / self.seeds:.2f} of them under load, with "
            f"{speed:.0f} tokens a CPU second\n"
            f"{self.seeds} seeds, {self.requests} requests, {self.tokens} tokens, {self.seconds:.0f} virtual s, "
            f"{self.cpu:.1f} CPU s, trace {self.hash.hexdigest()[:16]}"
        )


def show(report: "SeedReport", count: int, shown: "SeedReport") -> None:
    """Print what a seed violates, and the shortest list of its faults that shows it with the last events there."""
    for violation in report.violations[:MOST_SHOWN]:
        print(f"seed {report.seed} step {report.steps}: {violation}")
    if (more := len(report.violations) - MOST_SHOWN) > 0:
        print(f"seed {report.seed}: and {more} more")
    print(f"  seed {report.seed}: {count} of its {len(report.faults)} faults show it:")
    for fault in report.faults[:count]:
        print(f"    {fault}")
    for violation in shown.violations[:MOST_SHOWN]:
        print(f"  then, at step {shown.steps}: {violation}")
    for line in shown.last:
        print(f"    {line}")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Without the half second that freeing torch would take.
    os._exit(code)
