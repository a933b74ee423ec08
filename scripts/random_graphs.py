# SPDX-License-Identifier: Apache-2.0
"""Run random models of several stages, one from each seed, and compare with a plain run (docs/internals/graphs.md).

Each seed's stages run as workers' tasks in one process; with --world also with a proxy, workers and faults, in virtual
time. Ends with 1 at a difference.
"""

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from simulate import ROOT, Sums, model_for, show

# Of a seed of the world. Each request is the work of all stages.
REQUESTS, FAULTS = 6, 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run random models of several stages.")
    parser.add_argument("--seeds", required=True, metavar="A-B", help="the first and the last seed, or one")
    parser.add_argument("--world", action="store_true", help="run them with a proxy and workers, which die")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="seeds at a time, with --world")
    parser.add_argument("--show", action="store_true", help="write the models as Mermaid")
    return parser.parse_args()


def played(seeds: range) -> int:
    """Run each seed's stages in this process; return the number of seeds that differ."""
    from graph_play import play_seed

    differ = 0
    for seed in seeds:
        found = play_seed(seed)
        differ += bool(found)
        for one in found:
            print(f"seed {seed}: {one}")
    print(f"{len(seeds)} graphs, {differ} with a difference")
    return differ


def simulated(seeds: range, jobs: int) -> int:
    """Run each seed's model in a world of its own; return the number of seeds with a violation."""
    with tempfile.TemporaryDirectory(prefix="pontil-model-") as folder:
        model = model_for(Path(folder))
        from seed_children import reports
        from seed_run import SeedReport, run_seed
        from site_plan import SitePlan
        from staged_sites import RANDOM

        plan = SitePlan(1, 1, 0, 1, requests=REQUESTS, faults=FAULTS, changes=0)
        run_seed(0, replace(plan, faults=0), model)

        def work(seed: int) -> SeedReport:
            return run_seed(seed, replace(plan, stages=RANDOM + seed), model)

        sums = Sums()
        for report in reports(seeds, max(1, jobs), work):
            sums.add(report)
            if report.violations:
                show(report, len(report.faults), report)
        print(sums)
        return sums.violated


def main() -> int:
    given = arguments()
    low, _, high = given.seeds.partition("-")
    seeds = range(int(low), int(high or low) + 1)
    if given.world:
        return int(simulated(seeds, given.jobs) > 0)
    sys.path[:0] = [str(ROOT), *(str(ROOT / "tests/support" / room) for room in ("models", "checks"))]
    import_module("app")
    if given.show:
        from random_models import random_model

        from pontil.runtime.stages.graph.mermaid import mermaid

        for seed in seeds:
            print(mermaid(random_model(seed).graph))
    return int(played(seeds) > 0)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Without the half second that freeing torch would take.
    os._exit(code)
