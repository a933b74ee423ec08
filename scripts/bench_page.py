# SPDX-License-Identifier: Apache-2.0
"""Cost of the live page: CPU time of the proxy, and throughput, with and without open pages.

    scripts/bench_page.py [--viewers N] [--rounds N] [--seconds S] [--loads idle,4,8]
    scripts/bench_page.py --alternate reader|browser [--rounds N] [--seconds S] [--loads 4]

Starts a launch of one prefill and one decode worker on this machine. Under each load rounds with and without viewers
take turns; printed are medians. `proxy` is the CPU time of the proxy's process as a share of one core, `viewers` the
difference that they make, `per token` the proxy's CPU time per delivered token. The viewers are connections that read,
held by a process of their own.

With --alternate a run of `pontil bench` is the load; meanwhile one page is closed (A) and open (B) in turns of so many
seconds, A B B A, so that what changes slowly cancels. The page is a connection that reads, or one in Chromium at the
lowest priority, since an operator's browser is on another machine. Printed are the means of the quotients B/A of
neighbours, with their standard errors: of throughput, and of the CPU time of all the launch's processes per token.
"""

import argparse
import http.client
import json
import math
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/support/checks"), str(ROOT / "tests/support/fakes")]
WATCH, BROWSE = "--watch", "--browse"
# Seconds after a page was opened or closed in which nothing is measured.
SETTLING = {"reader": 0.2, "browser": 1.5}


def main() -> None:
    if sys.argv[1:2] == [WATCH]:
        watch(int(sys.argv[2]), int(sys.argv[3]))
        return
    if sys.argv[1:2] == [BROWSE]:
        browse(int(sys.argv[2]), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--loads", default="idle,4")
    parser.add_argument("--alternate", choices=tuple(SETTLING))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    told = parser.parse_args()
    from served import launched

    with tempfile.TemporaryDirectory() as folder, launched(Path(folder), "--model", told.model) as served:
        if told.alternate:
            with benched(served.port, told.loads.replace("idle,", "")), page(served.port, told.alternate) as turn:
                alternate(served, turn, told.rounds, told.seconds, SETTLING[told.alternate])
            return
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


def alternate(served: Any, turn: Callable[[bool], None], pairs: int, seconds: float, settling: float) -> None:
    rounds: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    processes = served.tree()
    for number in range(2 * pairs):
        opened = number % 4 in (1, 2)
        turn(opened)
        threading.Event().wait(settling)
        began, used, tokens = time.monotonic(), sum(map(busy, processes)), generated(served)
        threading.Event().wait(seconds)
        tokens = generated(served) - tokens
        rounds[opened].append((tokens / (time.monotonic() - began), (sum(map(busy, processes)) - used) / tokens))
    for place, name in enumerate(("tokens per second", "CPU seconds per token")):
        values = {opened: [one[place] for one in found] for opened, found in rounds.items()}
        logs = [math.log(b / a) for a, b in zip(values[False], values[True], strict=True)]
        error = statistics.stdev(logs) / math.sqrt(len(logs))
        medians = f"{statistics.median(values[False]):.4g} without, {statistics.median(values[True]):.4g} with the page"
        print(f"{name}: {medians}; {math.expm1(statistics.mean(logs)):+.2%}, standard error {error:.2%}")


def generated(served: Any) -> float:
    return float(served.metric("pontil_generation_tokens_total"))


@contextmanager
def benched(port: int, streams: str) -> Iterator[None]:
    """Keep the server under a run of `pontil bench`, once its streams have begun."""
    command = [
        sys.executable, str(ROOT / "app.py"), "bench", f"http://127.0.0.1:{port}", "--concurrency", streams,
        "--requests", "100000", "--prompt-tokens", "64", "--output-tokens", "64",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        threading.Event().wait(5)
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def page(port: int, kind: str) -> Iterator[Callable[[bool], None]]:
    """Hold a page in a process of its own; the function opens and closes it."""
    command = [sys.executable, __file__, BROWSE, str(port), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        writing, reading = process.stdin, process.stdout
        assert writing is not None and reading is not None

        def turn(opened: bool) -> None:
            writing.write(b"open\n" if opened else b"close\n")
            assert reading.read(1) == b".", "the page did not open or close"

        yield turn
        writing.close()


def browse(port: int, kind: str) -> None:
    """Open and close a page as the input says, until it ends."""
    os.nice(19)
    with ExitStack() as stack:
        show = stack.enter_context(chromium_page(port)) if kind == "browser" else reading_page(port)
        for line in sys.stdin:
            show(line == "open\n")
            print(".", end="", flush=True)


@contextmanager
def chromium_page(port: int) -> Iterator[Callable[[bool], None]]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = shutil.which("chromium")
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        tab = chromium.new_page(viewport={"width": 1280, "height": 900})

        def show(opened: bool) -> None:
            tab.goto(f"http://127.0.0.1:{port}/admin/ui" if opened else "about:blank")
            if opened:
                tab.locator("#verdict-text", has_text="workers serve").wait_for()

        yield show
        chromium.close()


def reading_page(port: int) -> Callable[[bool], None]:
    kept = list[http.client.HTTPConnection]()

    def show(opened: bool) -> None:
        while kept:
            connection = kept.pop()
            if connection.sock is not None:
                # Ends the reader too: closing alone waits for it.
                connection.sock.shutdown(socket.SHUT_RDWR)
        if opened:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/admin/events", headers={"connection": "keep-alive"})
            kept.append(connection)
            threading.Thread(target=read_out, args=(connection.getresponse(),), daemon=True).start()

    return show


def read_out(response: http.client.HTTPResponse) -> None:
    with suppress(OSError, http.client.HTTPException, ValueError):
        while response.read1():
            pass


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
