# SPDX-License-Identifier: Apache-2.0
"""Compare servers on one machine, one at a time, in interleaved rounds; the ratio of each round, and their median.

    python scripts/bench_compare.py --rounds 5 --concurrency 1 8 32 \\
        --launch "pair=python app.py launch --port 8123" --url http://127.0.0.1:8123 \\
        --peer vllm=http://127.0.0.1:9000,smollm2,PID

A peer runs already; its process group (PID leads it) is stopped with SIGSTOP while another server is measured, as idle
servers may spin. Each --launch is started anew for its turn and ended with SIGINT; it must print "ready on".
Loads and definitions are those of `app.py bench`: random prompts of 256 ids, 64 tokens out, new ones in each round. A
server that has seen these prompts may have them in its cache, so a second run must begin with another --first.
A ratio is ours over the peer's, of figures taken within one round. Without a --peer, launches are compared with those
after the first one: a state of the code with an earlier one, say.
"""

import argparse
import asyncio
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from own_key import key_headers  # noqa: E402

import app  # noqa: E402, F401
from pontil.launcher.tools.bench.bench_run import BenchRun, Load  # noqa: E402
from pontil.launcher.tools.bench.figures import Limits, figures_of  # noqa: E402
from pontil.launcher.tools.bench.questions import Question, fixed  # noqa: E402
from pontil.launcher.tools.bench.stream_client import BenchTarget  # noqa: E402

# Longest silence of a stream, in seconds.
SILENCE_TIMEOUT = 600.0
FIGURES = ("ttft_ms_median", "tpot_ms_median", "output_tokens_per_second")
Figures = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    name: str
    url: str
    model: str
    group: int

    @classmethod
    def read(cls, text: str) -> "Peer":
        name, _, rest = text.partition("=")
        url, model, group = rest.split(",")
        return cls(name, url, model, int(group))

    @contextmanager
    def running(self) -> Iterator[None]:
        os.killpg(self.group, signal.SIGCONT)
        try:
            yield
        finally:
            os.killpg(self.group, signal.SIGSTOP)


@dataclass(frozen=True)
class ComparedLaunch:
    name: str
    command: list[str]
    url: str
    model: str

    @classmethod
    def read(cls, text: str, url: str, model: str) -> "ComparedLaunch":
        name, _, command = text.partition("=")
        return cls(name, shlex.split(command), url, model)

    @contextmanager
    def running(self) -> Iterator[None]:
        with subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, bufsize=1) as process:
            assert process.stderr is not None
            try:
                last = ""
                for last in process.stderr:
                    if "ready on" in last:
                        break
                else:
                    raise RuntimeError(f"{self.name} ended before it was ready: {last.strip()}")
                # The log is read away, so that it does not fill the pipe.
                threading.Thread(target=process.stderr.read).start()
                yield
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(timeout=60)


def turn(server: "Peer | ComparedLaunch", arguments: argparse.Namespace, number: int) -> dict[int, Figures]:
    """Return the figures of one server at every concurrency, after a warm-up of two requests and a pause."""
    with server.running():
        closed_loop(server, questions(arguments, 7, number), 2, 2)
        rest(server.name, arguments.settle)
        found = {}
        for concurrency in arguments.concurrency:
            say(f"round {number}: {server.name}, {concurrency} streams")
            asked, count = questions(arguments, concurrency, number), arguments.requests * concurrency + 2
            found[concurrency] = closed_loop(server, asked, count, concurrency)
        return found


def closed_loop(server: "Peer | ComparedLaunch", asked: Iterator[Question], count: int, concurrency: int) -> Figures:
    target = BenchTarget(server.url, server.model, key=key_headers())
    return figures_of(asyncio.run(BenchRun(target, asked, count, SILENCE_TIMEOUT).run(Load(concurrency))), Limits())


def rest(name: str, seconds: float) -> None:
    """Leave a server alone for so long; say every ten seconds how long it still takes."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        say(f"{name} rests for {left:.0f} s more")
        time.sleep(min(left, 10.0))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def questions(arguments: argparse.Namespace, concurrency: int, number: int) -> Iterator[Question]:
    return fixed(256, 64, arguments.vocabulary, 1000 * number + concurrency)


def ratios(rounds: list[dict[str, dict[int, Figures]]], ours: str, peer: str) -> Iterator[Figures]:
    for concurrency in rounds[0][ours]:
        for figure in FIGURES:
            pairs = [(each[ours][concurrency][figure], each[peer][concurrency][figure]) for each in rounds]
            quotients = [mine / theirs for mine, theirs in pairs]
            yield {
                "ours": ours,
                "peer": peer,
                "concurrency": concurrency,
                "figure": figure,
                "ours_median": statistics.median(mine for mine, _ in pairs),
                "peer_median": statistics.median(theirs for _, theirs in pairs),
                "ratio_median": round(statistics.median(quotients), 3),
                "ratio_range": [round(min(quotients), 3), round(max(quotients), 3)],
            }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launch", action="append", required=True, metavar="NAME=COMMAND", help="a server of ours")
    parser.add_argument("--url", default="http://127.0.0.1:8123", help="where each launch serves")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="the model each launch serves")
    parser.add_argument("--peer", action="append", default=[], type=Peer.read, metavar="NAME=URL,MODEL,PID")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=3, help="requests for each concurrent stream, and two more")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--first", type=int, default=0, help="number of the first round; peers may keep what they saw")
    parser.add_argument("--settle", type=float, default=0, help="seconds of rest for each server before its figures")
    parser.add_argument("--vocabulary", type=int, default=40_000)
    arguments = parser.parse_args()
    launches = [ComparedLaunch.read(text, arguments.url, arguments.model) for text in arguments.launch]
    rounds = []
    for number in range(arguments.first, arguments.first + arguments.rounds):
        rounds.append({server.name: turn(server, arguments, number) for server in [*launches, *arguments.peer]})
        print(json.dumps(rounds[-1]), file=sys.stderr, flush=True)
    for launch in launches if arguments.peer else launches[:1]:
        for peer in arguments.peer or launches[1:]:
            for line in ratios(rounds, launch.name, peer.name):
                print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
