# SPDX-License-Identifier: Apache-2.0
"""Replay recorded conversations against a running server, and print what its workers had cached.

    python scripts/bench_routing.py --url http://127.0.0.1:8000 --model smollm2-135m-instruct --conversations 40

Each of --users streams plays one conversation after the other: a turn's prompt is everything that was said before, the
server's answers included, and new random token ids; after an answer the user rests for --pause seconds, on average.
Lengths are those of --lengths times --scale. To see what routing by caches gives, start the server once with
`--routing load` and once without, with at least two workers of each role, and compare. Needs only Python's standard
library; shares the machine with the server it measures.

One line of JSON is printed, its terms defined here:

  repeated  prompt tokens that the conversation had before, the most that can be cached
  cached    prompt tokens that were cached, as the server's usage says
  ttft_ms   from sending a request to its first token, of first and of later turns: median and nine of ten
  load      tokens that each worker computed and generated, by the route in the replies' headers
  skew      of each role: the load of its most loaded worker, over the even share
  failures  turns without a complete answer; their conversation ends
"""

import argparse
import csv
import http.client
import json
import queue
import random
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from own_key import key_headers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.launcher.tools.bench.questions import random_ids  # noqa: E402

LENGTHS = Path(__file__).resolve().parent / "data" / "sharegpt_lengths.csv"


@dataclass(frozen=True)
class RoutedTurn:
    """One answered turn. `place` counts a conversation's turns from 0."""

    place: int
    route: str
    prompt: int
    repeated: int
    cached: int
    output: int
    ttft: float


def conversations(path: Path, scale: float, longest: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the turns of each conversation, as many as fit into `longest` tokens: new prompt tokens and output."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            new = int(row["prompt_tokens"]) - int(row["shared_prefix_tokens"])
            turn = max(1, round(new * scale)), max(1, round(int(row["output_tokens"]) * scale))
            found[row["conversation"]].append(turn)
    for turns in found.values():
        fitting, length = list[tuple[int, int]](), 0
        for turn in turns:
            length += sum(turn)
            if length > longest:
                break
            fitting.append(turn)
        if fitting:
            yield fitting


class RoutingRun:
    """A replay by several users, and its outcomes."""

    def __init__(self, url: str, model: str, vocabulary: int, pause: float, seed: int) -> None:
        place = urlsplit(url)
        self.address = place.hostname or "127.0.0.1", place.port or 80
        self.model, self.vocabulary, self.pause, self.seed = model, vocabulary, pause, seed
        self.turns: list[RoutedTurn] = []
        self.failures: list[str] = []
        self.lock = threading.Lock()
        self.rest = threading.Event()

    def play(self, chosen: Sequence[Sequence[tuple[int, int]]], users: int) -> None:
        """Play all of the conversations; return when they have ended."""
        waiting: queue.SimpleQueue[tuple[int, Sequence[tuple[int, int]]]] = queue.SimpleQueue()
        for numbered in enumerate(chosen):
            waiting.put(numbered)
        threads = [threading.Thread(target=self.user, args=(waiting,)) for _ in range(users)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def user(self, waiting: "queue.SimpleQueue[tuple[int, Sequence[tuple[int, int]]]]") -> None:
        while True:
            try:
                number, turns = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self.converse(random.Random(f"{self.seed}/{number}"), turns)
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                with self.lock:
                    self.failures.append(str(error) or type(error).__name__)

    def converse(self, source: random.Random, turns: Sequence[tuple[int, int]]) -> None:
        said: list[int] = []
        for place, (new, output) in enumerate(turns):
            if place and self.pause:
                self.rest.wait(source.expovariate(1 / self.pause))
            prompt = said + random_ids(source, new, self.vocabulary)
            answer, turn = self.ask(place, prompt, len(said), output)
            with self.lock:
                self.turns.append(turn)
            said = prompt + answer

    def ask(self, place: int, prompt: list[int], repeated: int, output: int) -> tuple[list[int], RoutedTurn]:
        """Send a turn; return the answer's ids. Raises OSError, ValueError, KeyError or HTTPException if it fails."""
        connection = http.client.HTTPConnection(*self.address, timeout=600)
        body = {
            "model": self.model, "prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
        }  # fmt: skip
        sent = time.perf_counter()
        headers = {"content-type": "application/json", **key_headers()}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}: {response.read()[:300].decode(errors='replace')}")
        ids, first, usage = read_answer(response)
        connection.close()
        if first is None or not usage:
            raise ValueError("the stream ended without tokens or usage")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        route = response.getheader("x-pontil-route") or "-"
        return ids, RoutedTurn(place, route, len(prompt), repeated, cached, len(ids), first - sent)

    def summary(self) -> dict[str, Any]:
        load = self.load()
        prompt, repeated = sum(turn.prompt for turn in self.turns), sum(turn.repeated for turn in self.turns)
        cached = sum(turn.cached for turn in self.turns)
        return {
            "turns": len(self.turns),
            "prompt_tokens": prompt,
            "repeated": repeated,
            "cached": cached,
            "cached_of_repeated": round(cached / repeated, 3) if repeated else None,
            "whole_turns": sum(">" not in turn.route for turn in self.turns),
            "ttft_ms": {
                "first": spread([turn.ttft for turn in self.turns if not turn.place]),
                "later": spread([turn.ttft for turn in self.turns if turn.place]),
            },
            "load": load,
            "skew": skew(load),
            "failures": len(self.failures),
        }

    def load(self) -> dict[str, int]:
        """Return the tokens of each worker. The worker that computes a prompt is named first in its route."""
        load: dict[str, int] = defaultdict(int)
        for turn in self.turns:
            first, _, second = turn.route.partition(">")
            load[first] += turn.prompt - turn.cached
            load[second or first] += turn.output
        return dict(sorted(load.items()))


def read_answer(lines: http.client.HTTPResponse) -> tuple[list[int], float | None, dict[str, Any]]:
    """Return the ids of a streamed answer, the time of the first, and the usage. Raises ValueError for an error."""
    ids, first, usage = list[int](), None, dict[str, Any]()
    for line in lines:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(event["error"]["message"])
            for choice in event["choices"]:
                first = time.perf_counter() if first is None else first
                ids += choice.get("token_ids") or []
            usage = event.get("usage") or usage
    return ids, first, usage


def spread(seconds: Sequence[float]) -> dict[str, int] | None:
    if len(seconds) < 2:
        return None
    tenths = statistics.quantiles(seconds, n=10)
    return {"p50": round(1e3 * statistics.median(seconds)), "p90": round(1e3 * tenths[-1])}


def skew(load: dict[str, int]) -> dict[str, float]:
    roles: dict[str, list[int]] = defaultdict(list)
    for name, tokens in load.items():
        roles[name.partition(":")[0]].append(tokens)
    return {role: round(max(each) * len(each) / max(1, sum(each)), 2) for role, each in roles.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--lengths", type=Path, default=LENGTHS)
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--longest", type=int, default=2000, help="most tokens of a conversation")
    parser.add_argument("--pause", type=float, default=1.0)
    parser.add_argument("--vocabulary", type=int, default=49000)
    parser.add_argument("--seed", type=int, default=1)
    told = parser.parse_args()
    try:
        found = conversations(told.lengths, told.scale, told.longest)
        chosen = [turns for turns, _ in zip(found, range(told.conversations), strict=False)]
    except (OSError, KeyError, ValueError) as error:
        print(f"{told.lengths} has no lengths of conversations: {error}", file=sys.stderr)
        return 2
    run = RoutingRun(told.url, told.model, told.vocabulary, told.pause, told.seed)
    run.play(chosen, told.users)
    for failure in sorted(set(run.failures)):
        print(f"failed: {failure}", file=sys.stderr)
    print(json.dumps(run.summary()))
    return 1 if run.failures or not run.turns else 0


if __name__ == "__main__":
    sys.exit(main())
