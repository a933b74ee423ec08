# SPDX-License-Identifier: Apache-2.0
"""Run seeds of a launch of several models that sleep and wake (docs/guide/several-models.md).

    python scripts/simulate_models.py [--seeds 1-20] [--plant FAULT]

The real supervisor, proxy and workers, in virtual time: three models that do not fit their memory at once, 40 requests
for them, and up to three kills of the worker of one. Every answer is compared with the model's own; last requests have
to end before sleep, a crash may touch no other model, and who is refused has to be told an honest time. --plant runs
them with a fault. Prints a line of JSON for each seed, and ends with 1 after a violation.
"""

import argparse
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from simulate import model_for


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-20", metavar="FIRST-LAST")
    parser.add_argument("--plant", metavar="FAULT", help="one of tests/world/sleeping_faults.py, or all by turns")
    given = parser.parse_args()
    first, _, last = given.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    with tempfile.TemporaryDirectory(prefix="pontil-model-") as folder:
        model = model_for(Path(folder))
        from seed_children import told_by_a_child
        from sleeping_faults import PLANTED, planted
        from sleeping_models import run_models

        if given.plant not in (None, "all", *PLANTED):
            parser.error(f"no fault is called {given.plant}: choose all or one of {', '.join(PLANTED)}")
        faults = list(PLANTED) if given.plant == "all" else [given.plant]
        is_wrong = False
        for fault in faults:
            for seed in seeds:
                found = told_by_a_child(partial(run_models, seed, model, planted(fault)))
                is_wrong |= bool(found["violations"])
                print(json.dumps(found | ({} if fault is None else {"planted": fault})), flush=True)
    return int(is_wrong)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Without the half second that freeing torch would take.
    os._exit(code)
