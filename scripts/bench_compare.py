# SPDX-License-Identifier: Apache-2.0
"""Compare servers on one machine, one at a time, in interleaved rounds; the ratio of each round, and their median.

    python scripts/bench_compare.py --rounds 5 --concurrency 1 8 32 \\
        --launch "pair=python app.py launch --port 8123" --url http://127.0.0.1:8123 \\
        --peer vllm=http://127.0.0.1:9000,smollm2,PID

    python scripts/bench_compare.py --llama DIR --gguf FILE --concurrency 1 4 8

A peer runs already; its process group (PID leads it) is stopped with SIGSTOP while another server is measured, as idle
servers may spin. Each --launch is started anew for its turn, is ready when its /ready says so, and ended with SIGINT.
So is the llama-server in the folder of --llama (by its /health), which serves the file of --gguf beside a launch of
that file, on as many cores. Of what is started the seconds until it is ready are compared too, and the memory of all
its processes after two requests, where what several of them map counts once (PSS).
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
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from own_key import key_headers  # noqa: E402

import app  # noqa: E402, F401
from pontil.launcher.tools.bench.bench_run import BenchRun, Load  # noqa: E402
from pontil.launcher.tools.bench.figures import Limits, figures_of  # noqa: E402
from pontil.launcher.tools.bench.questions import Question, fixed  # noqa: E402
from pontil.launcher.tools.bench.stream_client import BenchTarget  # noqa: E402

# Longest silence of a stream, in seconds.
SILENCE_TIMEOUT = 600.0
# Longest time until a launch is ready, and between looks at whether it is.
READY_TIMEOUT, LOOK_EVERY = 600.0, 0.05
FIGURES = ("ttft_ms_median", "tpot_ms_median", "output_tokens_per_second")
OF_LAUNCHES = ("ready_seconds", "pss_mib")
# Tokens of context for each stream of llama-server: the load's prompts and answers.
LLAMA_CONTEXT = 512
# Seconds for a first token: a peer refuses nobody, and a large model on few cores keeps a prompt waiting for minutes.
PATIENCE = "600"
Figures = dict[str, Any]
# The figures of a turn by concurrency; under 0 are those of its start.
Turn = dict[int, Figures]


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
    ready_path: str = "/ready"

    @classmethod
    def read(cls, text: str, url: str, model: str) -> "ComparedLaunch":
        name, _, command = text.partition("=")
        return cls(name, shlex.split(command), url, model)

    @contextmanager
    def running(self) -> Iterator["StartedLaunch"]:
        """Raises RuntimeError if it ends, or takes too long, before it is ready."""
        began = time.monotonic()
        with (
            tempfile.TemporaryFile() as log,
            subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=log) as process,
        ):
            try:
                while not self.is_ready():
                    if process.poll() is not None or time.monotonic() - began > READY_TIMEOUT:
                        raise RuntimeError(f"{self.name} was not ready: {last_line(log)}")
                    time.sleep(LOOK_EVERY)  # nothing tells when a server of whatever kind is ready
                yield StartedLaunch(psutil.Process(process.pid), time.monotonic() - began)
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(timeout=60)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}{self.ready_path}", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


@dataclass(frozen=True)
class StartedLaunch:
    process: psutil.Process
    ready_seconds: float

    def figures(self) -> Figures:
        """Return what its start took, and the memory of all its processes now."""
        tree = [self.process, *self.process.children(recursive=True)]
        pss = sum(member.memory_full_info().pss for member in tree)
        return {"ready_seconds": round(self.ready_seconds, 2), "pss_mib": pss >> 20}


def last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def beside_llama(folder: Path, file: Path, arguments: argparse.Namespace) -> list[ComparedLaunch]:
    """A launch of a GGUF file, and llama-server with the same one, as many cores and a seat for each stream."""
    ours, theirs = arguments.url, arguments.llama_url
    streams, cores = max(arguments.concurrency), len(os.sched_getaffinity(0))
    launch = [
        sys.executable, "app.py", "launch", "--model", str(file), "--served-model-name", arguments.model,
        "--port", ours.rpartition(":")[2], "--first-byte-timeout", PATIENCE, "--kv-transfer-timeout", PATIENCE,
    ]  # fmt: skip
    server = [
        str(folder / "llama-server"), "--model", str(file), "--threads", str(cores), "--parallel", str(streams),
        "--ctx-size", str(streams * LLAMA_CONTEXT), "--port", theirs.rpartition(":")[2],
    ]  # fmt: skip
    return [
        ComparedLaunch("pontil", launch, ours, arguments.model),
        ComparedLaunch("llama.cpp", server, theirs, arguments.model, "/health"),
    ]


def turn(server: "Peer | ComparedLaunch", arguments: argparse.Namespace, number: int) -> Turn:
    """Return the figures of one server at every concurrency, after a warm-up of two requests and a pause."""
    with server.running() as running:
        closed_loop(server, questions(arguments, 7, number), 2, 2)
        rest(server.name, arguments.settle)
        found = {} if running is None else {0: running.figures()}
        for concurrency in arguments.concurrency:
            say(f"round {number}: {server.name}, {concurrency} streams")
            asked, count = questions(arguments, concurrency, number), arguments.requests * concurrency + 2
            found[concurrency] = closed_loop(server, asked, count, concurrency)
        return found


def closed_loop(server: "Peer | ComparedLaunch", asked: Iterator[Question], count: int, concurrency: int) -> Figures:
    """Raises RuntimeError for a request that failed: what is left would be no comparison."""
    target = BenchTarget(server.url, server.model, key=key_headers(), keeps_connections=False)
    outcomes = asyncio.run(BenchRun(target, asked, count, SILENCE_TIMEOUT).run(Load(concurrency)))
    if outcomes.failures:
        raise RuntimeError(f"{server.name} failed {len(outcomes.failures)} requests: {outcomes.failures[0]}")
    return figures_of(outcomes, Limits())


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


def ratios(rounds: list[dict[str, Turn]], ours: str, peer: str) -> Iterator[Figures]:
    for concurrency in rounds[0][ours]:
        if concurrency not in rounds[0][peer]:
            continue
        for figure in FIGURES if concurrency else OF_LAUNCHES:
            pairs = [(turns[ours][concurrency][figure], turns[peer][concurrency][figure]) for turns in rounds]
            # Of answers of one token the time per token is 0: such a figure has no ratio.
            quotients = [mine / theirs for mine, theirs in pairs if theirs]
            yield {
                "ours": ours,
                "peer": peer,
                "concurrency": concurrency,
                "figure": figure,
                "ours_median": statistics.median(mine for mine, _ in pairs),
                "peer_median": statistics.median(theirs for _, theirs in pairs),
                "ratio_median": round(statistics.median(quotients), 3) if quotients else None,
                "ratio_range": [round(min(quotients), 3), round(max(quotients), 3)] if quotients else None,
            }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launch", action="append", default=[], metavar="NAME=COMMAND", help="a server of ours")
    parser.add_argument("--llama", type=Path, metavar="DIR", help="the folder with llama-server")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="what it and a launch serve")
    parser.add_argument("--llama-url", default="http://127.0.0.1:8124", help="where it serves")
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
    if (arguments.llama is None) is not (arguments.gguf is None):
        parser.error("--llama and --gguf go together: the folder with llama-server, and the file that both serve")
    if arguments.llama is not None:
        launches += beside_llama(arguments.llama, arguments.gguf, arguments)
    if not launches:
        parser.error("nothing to compare: name --launch, or --llama with --gguf")
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
