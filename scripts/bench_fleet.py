# SPDX-License-Identifier: Apache-2.0
"""The time of a request's routing in the proxy, by the number of workers.

    python scripts/bench_fleet.py --workers 30 300

Workers are registered and nothing more: what would be sent to them is dropped. Each request takes its snapshot of the
registry, is admitted, routed and dispatched, as the HTTP side does it. Each size is measured with nothing cached, and
with the first 20 blocks of the prompt cached by every worker, as a system prompt is. The figures are the minimum and
the median of --requests, in milliseconds, whole and, as `routing`, beside one with two workers: the growth with the
fleet. `batch_ms` is the time after a batch of messages while a request waits for a seat.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import app  # noqa: E402, F401

# After `app`, which binds this checkout as the package.
sys.path[1:1] = [str(ROOT / "tests" / "support" / room) for room in ("fakes", "models")]

from fleet_proxy import fleet_proxy, submit  # noqa: E402
from tiny_llama import byte_level_tokenizer, tokenizer_config, write_json  # noqa: E402

from pontil.runtime.foundation.fair_share import FairShare  # noqa: E402
from pontil.runtime.proxy.requests.ticket import NO_KEY  # noqa: E402
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer  # noqa: E402

ROLES = {"pairs": ("prefill", "decode"), "mixed": ("mixed",)}


def timed(work: Callable[[], object], times: int) -> dict[str, float]:
    """Return the least time and the median in milliseconds."""
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        found.append(1e3 * (time.perf_counter() - begun))
    return {"min": round(min(found), 3), "median": round(statistics.median(found), 3)}


def measured(
    folder: Path, tokenizer: Tokenizer, size: int, roles: tuple[str, ...], shared: int, times: int
) -> dict[str, float]:
    made = fleet_proxy(folder, tokenizer, size, roles, shared, seats=8 * times)
    for _ in range(5):
        submit(made.proxy)
    return timed(lambda: submit(made.proxy), times)


def batch(folder: Path, tokenizer: Tokenizer, size: int, shared: int, times: int) -> dict[str, float]:
    made = fleet_proxy(folder, tokenizer, size, ROLES["pairs"], shared)
    for worker in made.proxy.registry.workers.values():
        worker.seat(FairShare.of(NO_KEY, 1.0), 2 * worker.seats)
    submit(made.proxy)
    return timed(made.proxy.admissions.dispatch, times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[30, 300])
    parser.add_argument("--requests", type=int, default=200)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        byte_level_tokenizer().save(str(folder / "tokenizer.json"))
        write_json(folder / "tokenizer_config.json", tokenizer_config())
        tokenizer = load_tokenizer(folder)
        gc.disable()
        for size in told.workers:
            for kind, roles in ROLES.items():
                for shared in (0, 20):
                    least = measured(folder, tokenizer, 2, roles, shared, told.requests)
                    request = measured(folder, tokenizer, size, roles, shared, told.requests)
                    row: dict[str, object] = {
                        "workers": size,
                        "roles": kind,
                        "shared_blocks": shared,
                        "request_ms": request,
                    }
                    row["routing_ms"] = {each: round(request[each] - least[each], 3) for each in request}
                    if kind == "pairs":
                        row["batch_ms"] = batch(folder, tokenizer, size, shared, told.requests)
                    print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
