# SPDX-License-Identifier: Apache-2.0
"""Ask several models of one launch under a Zipf load, in a memory that does not hold all of them.

    python scripts/bench_models.py --memory 2GB smollm2-135m-instruct gemma3-270m a.gguf b.gguf c.gguf

The first model is asked most: the one of rank r in proportion to 1 / r^SKEW. Each of --clients asks one request after
the other, --requests of them together, and one that is refused with Retry-After asks again when that says. Prompts are
a few of each model, so that every answer is compared with the first one to the same prompt, by token ids. Then, in
--pairs turns, a request goes to the first model of this launch, and one to a launch of that model alone beside it: both
suffer alike from what else the machine does. Starts launches of its own, of one mixed worker a model on the cores of
this process; runs in the cache of the environment. One line of JSON is printed, its terms defined here:

  answered, again   requests that were answered, and how often one was refused and asked again
  lost              requests without a whole and right answer, with the first few reasons
  deaths            workers that ended otherwise than by going to sleep
  most_bytes        the most that all workers took at once: proportional shares of what they map (PSS)
  wakes             of each model, how often it was woken
  wake_cpu_s        processor time of a worker when it is ready, median of the model's starts; the first is left out
  wake_s            seconds of these starts
  cold_s, warm_s    from sending a request to its first token, median and the worst, by the model's state at the time
  alone_s, beside_s the same of the pairs, and overhead_s the median of their differences
"""

import argparse
import http.client
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

APP = Path(__file__).resolve().parent.parent / "app.py"
START_TIMEOUT, PATIENCE = 900.0, 300.0
LOOK_EVERY = 0.1
# Seconds after a start in which a worker has done little else.
JUST = 1.0
PROMPTS, PROMPT_TOKENS = 4, 24
# Tries of one request, the longest wait that a reply may ask for, and the reasons that are shown.
TRIES, LONGEST, SHOWN = 20, 60.0, 5
TICKS = os.sysconf("SC_CLK_TCK")


def zipf(count: int, skew: float) -> list[float]:
    """Return how often each of so many is asked, by rank."""
    return [1 / rank**skew for rank in range(1, count + 1)]


class ModelServer:
    """A launch, or a stand-in for one, at a port of this host."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str) -> Any:
        """Return a page's JSON. Raises OSError and ValueError."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def states(self) -> dict[str, str]:
        return {one["id"]: one.get("state", "awake") for one in self.get("/v1/models")["data"]}

    def workers(self) -> list[dict[str, Any]]:
        found = self.get("/admin/topology")
        rows: list[dict[str, Any]] = found["processes"] if isinstance(found, dict) else found
        return [row for row in rows if row["role"] == "mixed"]

    def ask(self, model: str, prompt: Sequence[int], tokens: int) -> tuple[list[int], float]:
        """Return an answer's ids and the seconds to its first token. Raises AskAgainLater, and OSError, ValueError or
        HTTPException for any other failure."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        body = {"model": model, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "return_token_ids": True}
        sent = time.perf_counter()
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            reply = connection.getresponse()
            if reply.status == 503 and (after := reply.getheader("retry-after")) is not None:
                raise AskAgainLater(float(after))
            if reply.status != 200:
                raise ValueError(f"HTTP {reply.status}: {reply.read()[:200].decode(errors='replace')}")
            return read_stream(reply, sent, tokens)
        finally:
            connection.close()

    def ask_patiently(self, model: str, prompt: Sequence[int], tokens: int) -> tuple[list[int], float, int]:
        """Ask, and again when a reply says when, TRIES times at most; also return how often."""
        pause = threading.Event()
        for again in range(TRIES):
            try:
                return *self.ask(model, prompt, tokens), again
            except AskAgainLater as refused:
                if not 0 < refused.after <= LONGEST:
                    raise
                pause.wait(refused.after)
        raise ValueError(f"refused {TRIES} times")


class AskAgainLater(Exception):
    """A reply that says when to ask again, in so many seconds."""

    def __init__(self, after: float) -> None:
        super().__init__(f"refused for {after:g} s")
        self.after = after


def read_stream(reply: http.client.HTTPResponse, sent: float, tokens: int) -> tuple[list[int], float]:
    ids, first = list[int](), 0.0
    for line in reply:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(str(event["error"]))
            first = first or time.perf_counter() - sent
            ids += [token for choice in event["choices"] for token in choice.get("token_ids") or ()]
        elif line.startswith(b"data: [DONE]"):
            if len(ids) != tokens:
                raise ValueError(f"{len(ids)} tokens, and {tokens} were asked for")
            return ids, first
    raise ValueError("the stream was cut off")


class ZipfRun:
    """A load on several models by clients that ask one request after the other, and its outcomes."""

    def __init__(self, server: ModelServer, models: Sequence[str], skew: float, seed: int, tokens: int = 8) -> None:
        self.server, self.models, self.skew, self.seed, self.tokens = server, models, skew, seed, tokens
        self.asked, self.again = Counter[str](), 0
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.lost: list[str] = []
        self.right: dict[tuple[str, int], list[int]] = {}
        self.lock = threading.Lock()

    def play(self, requests: int, clients: int) -> None:
        """Ask so many requests; return when all have ended."""
        chance = random.Random(self.seed)
        drawn = chance.choices(self.models, zipf(len(self.models), self.skew), k=requests)
        wanted = iter([(model, chance.randrange(PROMPTS)) for model in drawn])
        threads = [threading.Thread(target=self.client, args=(wanted,)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def client(self, wanted: Iterator[tuple[str, int]]) -> None:
        while True:
            with self.lock:
                model, number = next(wanted, (None, 0))
            if model is None:
                return
            try:
                self.ask(model, number)
            except (OSError, ValueError, KeyError, http.client.HTTPException, AskAgainLater) as error:
                with self.lock:
                    self.lost.append(f"{model}: {error or type(error).__name__}")

    def ask(self, model: str, number: int) -> None:
        state = self.server.states()[model]
        ids, first, again = self.server.ask_patiently(model, prompt_of(number), self.tokens)
        with self.lock:
            self.asked[model] += 1
            self.again += again
            self.seconds["warm" if state == "awake" else "cold"].append(first)
            if self.right.setdefault((model, number), ids) != ids:
                raise ValueError("another answer to the same prompt")

    def summary(self) -> dict[str, Any]:
        return {
            "answered": sum(self.asked.values()), "again": self.again, "lost": len(self.lost), "why": self.lost[:SHOWN],
            "by_model": dict(self.asked), "cold": len(self.seconds["cold"]), "warm": len(self.seconds["warm"]),
            "cold_s": middle_and_worst(self.seconds["cold"]), "warm_s": middle_and_worst(self.seconds["warm"]),
        }  # fmt: skip


def prompt_of(number: int) -> list[int]:
    return [2 + (31 * number + 7 * place) % 250 for place in range(PROMPT_TOKENS)]


def middle_and_worst(seconds: Sequence[float]) -> list[float]:
    return [round(statistics.median(seconds), 3), round(max(seconds), 3)] if seconds else []


class WorkerWatch(threading.Thread):
    """A watch of the workers of a launch, every tenth of a second: their memory, starts and deaths."""

    def __init__(self, server: ModelServer) -> None:
        super().__init__(daemon=True)
        self.server, self.ended = server, threading.Event()
        self.most_bytes, self.deaths = 0, dict[str, str]()
        # Of each worker its starts: seconds, and processor time if they were just over, by pid.
        self.starts: dict[str, dict[int, tuple[float, float | None]]] = defaultdict(dict)

    def run(self) -> None:
        while not self.ended.wait(LOOK_EVERY):
            try:
                self.look(self.server.workers())
            except (OSError, ValueError, http.client.HTTPException):
                continue

    def look(self, rows: Sequence[dict[str, Any]]) -> None:
        pids = [row["pid"] for row in rows if row.get("pid")]
        self.most_bytes = max(self.most_bytes, sum(map(share_of_memory, pids)))
        for row in rows:
            pid, took = row.get("pid"), row.get("start_seconds")
            if pid and took is not None and pid not in self.starts[row["name"]]:
                is_new = row.get("uptime_seconds", 0) <= took + JUST
                self.starts[row["name"]][pid] = took, processor_time(pid) if is_new else None
            if "last_death" in row:
                self.deaths[row["name"]] = str(row["last_death"])

    def summary(self) -> dict[str, Any]:
        wakes = {name: list(starts.values())[1:] for name, starts in self.starts.items()}
        counts = {name: len(some) for name, some in wakes.items()}
        middles: dict[str, dict[str, float]] = {"wake_s": {}, "wake_cpu_s": {}}
        for name, some in wakes.items():
            for place, shown in enumerate(middles.values()):
                if known := [one for start in some if (one := start[place]) is not None]:
                    shown[name] = round(statistics.median(known), 2)
        return {"deaths": self.deaths, "most_bytes": self.most_bytes, "wakes": counts} | middles


def share_of_memory(pid: int) -> int:
    """Return a process's proportional share of what it maps, in bytes; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def processor_time(pid: int) -> float | None:
    """Return a process's processor time in seconds; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS


def pairs(alone: ModelServer, beside: ModelServer, model: str, count: int, tokens: int) -> dict[str, Any]:
    """Ask one and the other by turns; the first turn of each warms up."""
    first: dict[str, list[float]] = {"alone_s": [], "beside_s": []}
    for turn in range(count + 1):
        for key, server in zip(first, (alone, beside), strict=True):
            first[key].append(server.ask_patiently(model, prompt_of(turn % PROMPTS), tokens)[1])
    both = list(zip(first["alone_s"][1:], first["beside_s"][1:], strict=True))
    differences = [beside_seconds - alone_seconds for alone_seconds, beside_seconds in both]
    shown: dict[str, Any] = {key: middle_and_worst(seconds[1:]) for key, seconds in first.items()}
    return shown | {"overhead_s": round(statistics.median(differences), 4)}


@contextmanager
def launched(models: Sequence[str], more: Sequence[str]) -> Iterator[ModelServer]:
    """Start a launch of these models, and end it. Raises RuntimeError if it ends before it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cores = os.sched_getaffinity(0)
    words = ["launch", "--port", str(port), "--role", "mixed", "--mixed", f"cpu:{min(cores)}-{max(cores)}", *more]
    words += [word for model in models for word in ("--model", model)]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([sys.executable, str(APP), *words], stdout=said, stderr=subprocess.STDOUT)
        try:
            server = ModelServer(port)
            wait_until(lambda: process.poll() is not None or server.is_ready(), START_TIMEOUT)
            if process.poll() is not None:
                said.seek(0)
                raise RuntimeError(f"the launch ended:\n{said.read()[-2000:]}")
            yield server
        finally:
            process.terminate()
            process.wait(PATIENCE)


def wait_until(condition: Callable[[], bool], within: float) -> None:
    pause, end = threading.Event(), time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"it was not ready within {within:g} s")
        pause.wait(LOOK_EVERY)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--memory", default="2GB", help="the launch's --model-memory")
    parser.add_argument("--kv", default="64MiB", help="KV cache of each worker")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--skew", type=float, default=1.0)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=8, help="of each answer")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    common = ["--kv-cache-memory", given.kv]
    with launched(given.models, [*common, "--share-devices", "--model-memory", given.memory]) as server:
        names = list(server.states())
        run, watch = ZipfRun(server, names, given.skew, given.seed, given.tokens), WorkerWatch(server)
        watch.start()
        run.play(given.requests, given.clients)
        shown = {"memory": given.memory, "models": names} | run.summary()
        if given.pairs:
            with launched(given.models[:1], common) as alone:
                shown |= pairs(alone, server, names[0], given.pairs, given.tokens)
        watch.ended.set()
        watch.join()
        shown |= watch.summary()
    print(json.dumps(shown), flush=True)
    return 1 if run.lost or watch.deaths else 0


if __name__ == "__main__":
    sys.exit(main())
