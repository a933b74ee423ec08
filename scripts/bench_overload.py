# SPDX-License-Identifier: Apache-2.0
"""Overload a running server, and measure its goodput.

    python app.py launch --first-byte-timeout 10 &
    python scripts/bench_overload.py --url http://127.0.0.1:8000 --deadline 10
    python scripts/bench_overload.py --keys api.keys --greedy alice --modest bob     # names in the server's key file

First its capacity: answers a second in closed loop, --streams at once. Then open loop: Poisson arrivals at multiples of
that rate (--times 1.2 2 10), each for --seconds. With --greedy and --modest the last load runs once more: one key
requests all of it, the other three tenths of capacity, first alone and then beside it. Prompts are random token ids,
answers have exactly the requested length. Needs only Python's standard library, and shares the machine with the server.

  answered  completely, with a first token within --deadline; a second, and as a share of capacity
  late      completely, but with a later first token
  refused   429 or 503 before any token; with the median time of a refusal
  cut       anything else: an error in a stream, a connection that broke, another status
  rss       the proxy's resident memory, the highest of the run, in MiB
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.launcher.tools.bench.questions import Question, fixed  # noqa: E402

PATIENCE = 120.0
MOST_BYTES = 1 << 20
COLUMNS = ("load", "sent", "answered", "per_s", "of_capacity", "late", "refused", "refused_ms", "cut", "ttft_s",
           "ttft_p99_s", "rss_mib")  # fmt: skip


@dataclass
class RequestOutcome:
    """One request: how it ended, and when its first token or its refusal arrived, in seconds after it was sent. `at` is
    when it ended, in seconds of the run."""

    kind: str
    after: float
    at: float


@dataclass
class LoadRun:
    """One load on one server."""

    url: str
    model: str
    questions: Iterator[Question]
    deadline: float
    key: str | None = None
    outcomes: list[RequestOutcome] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    rss: int = 0

    async def one(self) -> None:
        sent = time.perf_counter()
        try:
            kind, after = await asyncio.wait_for(self.ask(next(self.questions), sent), PATIENCE)
        except (OSError, ValueError, EOFError, asyncio.TimeoutError):
            kind, after = "cut", time.perf_counter() - sent
        self.outcomes.append(RequestOutcome(kind, after, time.perf_counter() - self.began))

    async def ask(self, question: Question, sent: float) -> tuple[str, float]:
        body = json.dumps({
            "model": self.model, "prompt": question.prompt, "max_tokens": question.tokens, "temperature": 0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }).encode()  # fmt: skip
        reader, writer = await connect(self.url)
        try:
            writer.write(head("POST", "/v1/completions", self.key, len(body)) + body)
            status = int((await reader.readuntil(b"\r\n")).split()[1])
            if status in (429, 503):
                return "refused", time.perf_counter() - sent
            return await self.follow(reader, sent) if status == 200 else ("cut", time.perf_counter() - sent)
        finally:
            writer.close()

    async def follow(self, reader: asyncio.StreamReader, sent: float) -> tuple[str, float]:
        """Read a stream to its end."""
        first: float | None = None
        complete = False
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    break
                if event["choices"] and first is None:
                    first = time.perf_counter() - sent
                complete = complete or bool(event.get("usage"))
            elif line.startswith(b"data: [DONE]"):
                break
        if first is None or not complete:
            return "cut", time.perf_counter() - sent
        return ("answered" if first <= self.deadline else "late"), first

    async def closed_loop(self, streams: int, seconds: float) -> None:
        async def stream() -> None:
            while time.perf_counter() - self.began < seconds:
                await self.one()
                if self.outcomes[-1].kind == "refused":
                    await asyncio.sleep(1.0)

        await self.watched(asyncio.gather(*(stream() for _ in range(streams))))

    async def open_loop(self, rate: float, seconds: float, seed: int) -> None:
        async def arrivals() -> None:
            source, due, tasks = random.Random(seed), self.began, list[asyncio.Task[None]]()
            while (due := due + source.expovariate(rate)) - self.began < seconds:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                tasks.append(asyncio.create_task(self.one()))
            if tasks:
                await asyncio.wait(tasks)

        await self.watched(arrivals())

    async def watched(self, load: Any) -> None:
        """Run the load while sampling the proxy's memory."""
        self.began = time.perf_counter()
        watch = asyncio.create_task(self.watch())
        await load
        watch.cancel()
        await self.look()

    async def watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(2.0)

    async def look(self) -> None:
        with suppress(OSError, ValueError, EOFError, KeyError, asyncio.TimeoutError):
            rows = json.loads(await asyncio.wait_for(get(self.url, "/admin/topology", self.key), 5.0))["processes"]
            self.rss = max(self.rss, *(row.get("rss_bytes", 0) for row in rows if row["role"] == "proxy"))

    def of(self, kind: str) -> list[float]:
        return [one.after for one in self.outcomes if one.kind == kind]

    def row(self, load: str, seconds: float, capacity: float | None) -> dict[str, Any]:
        answered, refused = sorted(self.of("answered")), self.of("refused")
        rate = len(answered) / seconds
        return {
            "load": load,
            "sent": len(self.outcomes),
            "answered": len(answered),
            "per_s": round(rate, 2),
            "of_capacity": f"{rate / capacity:.0%}" if capacity else "",
            "late": len(self.of("late")),
            "refused": len(refused),
            "refused_ms": round(1000 * statistics.median(refused), 1) if refused else "",
            "cut": len(self.of("cut")),
            "ttft_s": round(statistics.median(answered), 2) if answered else "",
            "ttft_p99_s": round(answered[-(-len(answered) * 99 // 100) - 1], 2) if answered else "",
            "rss_mib": self.rss >> 20,
        }


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    place = urlsplit(url)
    return await asyncio.open_connection(place.hostname or "127.0.0.1", place.port or 80, limit=MOST_BYTES)


def head(method: str, path: str, key: str | None, length: int) -> bytes:
    bearer = "" if key is None else f"authorization: Bearer {key}\r\n"
    fields = f"host: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n"
    return f"{method} {path} HTTP/1.1\r\n{fields}{bearer}\r\n".encode()


async def get(url: str, path: str, key: str | None) -> bytes:
    """Return the whole body: a single read would end with the first packet."""
    reader, writer = await connect(url)
    try:
        writer.write(head("GET", path, key, 0))
        return (await reader.read()).partition(b"\r\n\r\n")[2]
    finally:
        writer.close()


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.seed = arguments, arguments.seed

    def run(self, key: str | None = None) -> LoadRun:
        one = self.arguments
        self.seed += 1
        questions = fixed(one.prompt_tokens, one.output_tokens, one.vocabulary, self.seed)
        return LoadRun(one.url, one.model, questions, one.deadline, key or self.key(one.greedy))

    def key(self, name: str | None) -> str | None:
        """Return the key of that name from the server's own key file."""
        if name is None:
            return None
        lines = self.arguments.keys.read_text().splitlines()
        found = [line.split()[0].partition("=")[2] for line in lines if line.startswith(f"{name}=")]
        if not found:
            raise SystemExit(f"{self.arguments.keys} has no key of {name}")
        return str(found[0])

    async def all(self) -> None:
        one = self.arguments
        await self.run().one()
        show(dict(zip(COLUMNS, COLUMNS, strict=True)))
        closed = self.run()
        await closed.closed_loop(one.streams, one.seconds)
        # Answers from the ramp-up and ramp-down are left out: not all streams are active then.
        inside = [it for it in closed.outcomes if it.kind == "answered" and one.seconds / 4 < it.at <= one.seconds]
        capacity = len(inside) / (0.75 * one.seconds)
        show(closed.row(f"closed {one.streams}", max(it.at for it in closed.outcomes), capacity))
        capacity = one.capacity or capacity
        print(f"# capacity: {capacity:.2f} answers a second", flush=True)
        if not capacity:
            return
        for times in one.times:
            crowd = self.run()
            await crowd.open_loop(times * capacity, one.seconds, self.seed)
            show(crowd.row(f"{times:g}x", one.seconds, capacity))
        if one.greedy and one.modest:
            await self.share(capacity)

    async def share(self, capacity: float) -> None:
        one, key = self.arguments, self.key(self.arguments.modest)
        alone, beside, greedy = self.run(key), self.run(key), self.run()
        await alone.open_loop(0.3 * capacity, one.seconds, 7)
        show(alone.row("modest alone", one.seconds, capacity))
        times = max(one.times)
        await asyncio.gather(
            beside.open_loop(0.3 * capacity, one.seconds, 7), greedy.open_loop(times * capacity, one.seconds, 8)
        )
        show(beside.row("modest beside", one.seconds, capacity))
        show(greedy.row(f"greedy {times:g}x", one.seconds, capacity))


def show(row: dict[str, Any]) -> None:
    print("| " + " | ".join(str(row[name]) for name in COLUMNS) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds to the first token")
    parser.add_argument("--streams", type=int, default=64, help="closed loop: at once")
    parser.add_argument("--capacity", type=float, help="answers a second, where it is known better")
    parser.add_argument("--times", type=float, nargs="+", default=[1.2, 2.0, 10.0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keys", type=Path, help="the server's file of API keys")
    parser.add_argument("--greedy", help="name of the key that asks for everything")
    parser.add_argument("--modest", help="name of the key that asks for three tenths")
    asyncio.run(Bench(parser.parse_args()).all())
    return 0


if __name__ == "__main__":
    sys.exit(main())
