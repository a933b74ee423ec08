# SPDX-License-Identifier: Apache-2.0
"""Flood a running server beside a lease and without one, by turns, while each of its workers is killed once.

    python app.py launch --role mixed --mixed cpu:0,cpu:1 --kv-cache-memory 200MiB --max-model-len 4096
    python scripts/flood_lease.py --url http://localhost:8000

Prints a line of JSON for each flood: requests a second, leased tokens that a request behind it found in the end, and
what became of the lease. The workers have to be on this host, and the model's cache smaller than the flood.
"""

import argparse
import json
import os
import random
import signal
import statistics
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from bench_contracts import asked, model_at

HOUR = "1h"


def workers(address: Any) -> dict[str, int]:
    """Return the pids of the workers that generate, by name."""
    processes = asked(address, "GET", "/admin/topology", None)["processes"]
    return {str(one["name"]): int(one["pid"]) for one in processes if one["role"] in ("mixed", "prefill", "decode")}


class Flood:
    """Requests of some clients at once, each with a prompt that nobody sent before. After each part of them one of the
    workers is killed."""

    def __init__(self, address: Any, arguments: argparse.Namespace, seed: int) -> None:
        self.address, self.arguments = address, arguments
        self.random = random.Random(seed)
        self.victims = sorted(workers(address))
        self.left, self.lock = arguments.requests, threading.Lock()

    def prompt(self, tokens: int) -> list[int]:
        return [self.random.randrange(100, 40000) for _ in range(tokens)]

    def next(self) -> list[int] | None:
        """Return the next prompt, or None behind the last one; kill whoever is to die now."""
        with self.lock:
            if not self.left:
                return None
            self.left -= 1
            done = self.arguments.requests - self.left
            part = self.arguments.requests // (len(self.victims) + 1)
            if done % part == 0 and done // part <= len(self.victims):
                os.kill(workers(self.address)[self.victims[done // part - 1]], signal.SIGKILL)
            return self.prompt(self.arguments.prompt_tokens)

    def client(self) -> None:
        while (prompt := self.next()) is not None:
            body = {"prompt": prompt, "max_tokens": self.arguments.output_tokens, "ignore_eos": True}
            asked(self.address, "POST", "/v1/completions", self.arguments.named | body)

    def run(self) -> float:
        """Return the requests that were answered in a second."""
        begun = time.monotonic()
        clients = [threading.Thread(target=self.client) for _ in range(self.arguments.clients)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        return float(self.arguments.requests / (time.monotonic() - begun))


def flooded(address: Any, arguments: argparse.Namespace, seed: int, is_leased: bool) -> dict[str, Any]:
    flood = Flood(address, arguments, seed)
    prefix = flood.prompt(arguments.lease_tokens)
    if not is_leased:
        return {"leased": False, "requests_per_second": round(flood.run(), 3)}
    lease = asked(address, "POST", "/v1/prefixes", arguments.named | {"prompt": prefix, "ttl": HOUR})
    told = {"leased": True, "requests_per_second": round(flood.run(), 3), "tokens": lease["tokens"]}
    usage = asked(
        address, "POST", "/v1/completions", arguments.named | {"prompt": [*prefix, *flood.prompt(9)], "max_tokens": 1}
    )["usage"]
    ended = asked(address, "DELETE", f"/v1/prefixes/{lease['id']}", None)
    return told | {
        "found": usage["prompt_tokens_details"]["cached_tokens"],
        "state": ended["state"],
        "byte_seconds": ended["byte_seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://localhost:8000")
    for name, value in {
        "runs": 3, "requests": 120, "clients": 8, "prompt-tokens": 256, "output-tokens": 16, "lease-tokens": 2000
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    address = urlsplit(arguments.url)
    arguments.named = {"model": model_at(address)}
    rates: dict[bool, list[float]] = {False: [], True: []}
    for run in range(arguments.runs):
        for is_leased in (False, True) if run % 2 == 0 else (True, False):
            told = flooded(address, arguments, run, is_leased)
            rates[is_leased].append(told["requests_per_second"])
            print(json.dumps({"run": run} | told), flush=True)
    medians = {is_leased: statistics.median(found) for is_leased, found in rates.items()}
    print(json.dumps({"beside": medians[True], "without": medians[False]}))


if __name__ == "__main__":
    main()
