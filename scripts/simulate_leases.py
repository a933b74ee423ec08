# SPDX-License-Identifier: Apache-2.0
"""Flood a site of the world beside a leased prefix, and kill or drain every worker in turn (docs/guide/contracts.md).

    python scripts/simulate_leases.py --steps 1=14.4,8=14.8,32=53.3,256=284.2 [--requests 5770] [--lease 10800]

--steps are milliseconds of a step by its rows, as scripts/bench_engine.py prints them. The flood's requests have 256
tokens in and 8 out, 150 at a time; all of them have to be answered. It runs twice, without and with the lease, and with
the same kills. Prints a line of JSON for each: the flood's rate, and of the requests behind the lease how many found
all leased tokens. Ends with 1 if one did not, if the lease is neither held nor refunded, or after a violation.
Virtual time: other work on this machine changes nothing, and equal arguments give equal figures.
"""

import argparse
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from simulate import model_for


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", required=True, metavar="ROWS=MS,…", help="time of a step by its rows")
    parser.add_argument("--ratio", default="0:3", metavar="P:D", help="prefill and decode workers, or 0:D mixed ones")
    parser.add_argument("--requests", type=int, default=5770, help="requests of the flood")
    parser.add_argument("--lease", type=int, default=10_800, metavar="TOKENS", help="tokens of the leased prefix")
    parser.add_argument("--befalls", choices=["kill", "drain", "nothing"], default="kill", help="every worker in turn")
    parser.add_argument(
        "--first", type=float, default=1.0, metavar="PARTS", help="of the flood before the first worker"
    )
    return parser.parse_args()


def main() -> int:
    given = arguments()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="pontil-model-") as folder:
        model = model_for(Path(folder))
        from goodput import use
        from lease_flood import FaultTurns, FloodOutcome, figures, flooded
        from seed_children import told_by_a_child
        from step_profile import StepProfile

        use(StepProfile.read(given.steps), 0.1e-3)
        turns = FaultTurns(None if given.befalls == "nothing" else given.befalls, given.first)
        for lease in (0, given.lease):
            work = partial(flooded, given.ratio, model, given.requests, lease, turns)
            found = FloodOutcome(**told_by_a_child(work))
            print(json.dumps(figures(given.ratio, found)), flush=True)
            wrong += found.violations
            if lease:
                wrong += [f"a request behind the lease found {tokens} of its tokens" for tokens in found.missed]
                amounts = found.byte_seconds
                if found.state == "refunded" and amounts["granted"] != amounts["held"] + amounts["refunded"]:
                    wrong.append(f"the lease was refunded: {amounts}")
                if found.state not in ("held", "moving", "refunded"):
                    wrong.append(f"the lease is {found.state}")
    for one in wrong:
        print(one)
    return int(bool(wrong))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Without the half second that freeing torch would take.
    os._exit(code)
