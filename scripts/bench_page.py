# SPDX-License-Identifier: Apache-2.0
"""Cost of the live page: CPU time of the proxy, and throughput, with and without open pages.

    scripts/bench_page.py [--viewers N] [--rounds N] [--seconds S] [--loads idle,4,8]

Starts a launch of one prefill and one decode worker on this machine. Under each load rounds with and without viewers
take turns; printed are medians. `proxy` is the CPU time of the proxy's process as a share of one core, `viewers` the
difference that they make, `per token` the proxy's CPU time per delivered token. The viewers are connections that read,
held by a process of their own.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/support/checks"), str(ROOT / "tests/support/fakes")]
WATCH = "--watch"


def main() -> None:
    if sys.argv[1:2] == [WATCH]:
        watch(int(sys.argv[2]), int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--loads", default="idle,4")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    told = parser.parse_args()
    from served import launched

    with tempfile.TemporaryDirectory() as folder, launched(Path(folder), "--model", told.model) as served:
        proxy = psutil.Process(served.topology()["proxy"]["pid"])
        for load in told.loads.split(","):
            rounds: dict[int, list[tuple[float, float]]] = {0: [], told.viewers: []}
            with clients(served.port, 0 if load == "idle" else int(load)):
                for number in range(2 * told.rounds):
                    viewers = (0, told.viewers)[number % 2]
                    with pages(served.port, viewers):
                        rounds[viewers].append(measure(proxy, served, told.seconds))
            report(load, told.viewers, rounds)


def report(load: str, viewers: int, rounds: dict[int, list[tuple[float, float]]]) -> None:
    shares = {count: statistics.median(share for share, _ in found) for count, found in rounds.items()}
    rates = {count: statistics.median(rate for _, rate in found) for count, found in rounds.items()}
    print(f"load {load}: proxy {shares[0]:.2%} of a core, with {viewers} viewers {shares[viewers]:.2%}", end="")
    print(f", viewers {shares[viewers] - shares[0]:+.2%}", end="")
    if rates[0]:
        print(f"; {rates[0]:.1f} and {rates[viewers]:.1f} tokens/s ({rates[viewers] / rates[0] - 1:+.2%})", end="")
        cost = {count: 1e6 * shares[count] / rates[count] for count in rounds}
        print(f"; per token {cost[0]:.0f} and {cost[viewers]:.0f} us", end="")
    print(flush=True)


def measure(proxy: psutil.Process, served: Any, seconds: float) -> tuple[float, float]:
    """Return the proxy's share of a core, and delivered tokens a second."""
    began, used, tokens = time.monotonic(), busy(proxy), served.metric("pontil_generation_tokens_total")
    threading.Event().wait(seconds)
    used, tokens = busy(proxy) - used, served.metric("pontil_generation_tokens_total") - tokens
    passed = time.monotonic() - began
    return used / passed, tokens / passed


def busy(process: psutil.Process) -> float:
    """Return the CPU seconds of a process."""
    # The scheduler's own count, in nanoseconds: those that psutil reads are in hundredths of a second.
    tasks = Path(f"/proc/{process.pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


@contextmanager
def pages(port: int, count: int) -> Iterator[None]:
    """Hold so many pages open."""
    if not count:
        yield
        return
    command = [sys.executable, __file__, WATCH, str(port), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.terminate()


def watch(port: int, count: int) -> None:
    """Read the events of so many pages until killed."""
    os.nice(5)
    responses = []
    for _ in range(count):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/admin/events")
        responses.append(connection.getresponse())
    threads = [threading.Thread(target=response.read, daemon=True) for response in responses]
    for thread in threads:
        thread.start()
    print("open", flush=True)
    for thread in threads:
        thread.join()


@contextmanager
def clients(port: int, count: int) -> Iterator[None]:
    """Keep so many streams going."""
    stopping = threading.Event()

    def ask(number: int) -> None:
        turn = 0
        while not stopping.is_set():
            turn += 1
            prompt = [100 + (7 * number + 13 * turn + 3 * place) % 30000 for place in range(256)]
            body = {"prompt": prompt, "max_tokens": 64, "temperature": 0, "ignore_eos": True, "stream": True}
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            connection.getresponse().read()
            connection.close()

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join(60)


if __name__ == "__main__":
    main()
