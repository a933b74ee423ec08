# SPDX-License-Identifier: Apache-2.0
"""The cost of a streamed token in the proxy alone, beside a bare sanic app that sends the same events.

    python scripts/bench_proxy.py --streams 8 64 512 --tokens 64 --rate 20

A synthetic worker (the real wire, no model) answers every request with --tokens tokens, one for each stream at a time,
--rate times a second, in messages as real workers send them. One client for each stream reads the answer, counts
events. The figure is the CPU time of the proxy's process from the first request to the last answer, divided by the
tokens that arrived, in microseconds; requests, headers and ends are included. CPU time excludes the time that other
processes take of the core. With --proxies N several proxies share the port: `us_per_token` is then all proxies' time,
`shares` how it is divided, and `tokens_per_cpu_second` the tokens for each CPU second of the busiest one, which is what
limits the front where each has a core. `floor` is the same for a sanic handler that only sends events of the same
length at the same moments. A proxy that cannot keep up joins tokens of one stream into one event: `events_per_token`
says whether it did.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import app  # noqa: E402, F401
from pontil.runtime.wire.codec import joined  # noqa: E402
from pontil.runtime.wire.links.sockets import Poller, WorkerSocket, open_context  # noqa: E402
from pontil.runtime.wire.messages import SCHEMA, Cancel, Heartbeat, Hello, Submit, Tokens, Welcome  # noqa: E402

MODEL = "smollm2-135m-instruct"
WORD = 338
BEAT = 0.5
CHUNK = b"data: " + b"x" * 190 + b"\n\n"


class SyntheticWorker:
    """A worker that serves any number of requests; each step makes one token for every request."""

    def __init__(self, controls: Sequence[str], tokens: int, rate: float) -> None:
        self.name = os.urandom(8).hex()
        context = open_context()
        self.sockets = [WorkerSocket(context, self.name, control) for control in controls]
        self.poller = Poller()
        for each in self.sockets:
            self.poller.register(each)
        self.tokens, self.period = tokens, 1 / rate
        # The proxy at the other end of each socket.
        self.proxies: dict[WorkerSocket, str] = {}
        self.running: dict[str, tuple[Submit, int]] = {}

    def serve(self) -> None:
        hello = Hello(
            self.name, SCHEMA, "mixed:0", "mixed", os.getpid(), "cpu", MODEL, "m", "kv", "ipc:///dev/null", 16,
            1 << 20, 4096, 8192, 256,
        )  # fmt: skip
        for each in self.sockets:
            each.send(hello)
        beat = step = time.monotonic()
        while True:
            self.poller.wait(max(0.0, min(beat, step) - time.monotonic()))
            for each in self.sockets:
                for message in each.receive_all():
                    self.take(message, each)
            now = time.monotonic()
            if now >= beat:
                beat = now + BEAT
                for each in self.sockets:
                    proxy = self.proxies.get(each)
                    each.send(Heartbeat(self.name, proxy, len(self.running), 0, 1 << 20, 1, {}) if proxy else hello)
            if now >= step:
                step = max(step + self.period, now)
                self.step()

    def take(self, message: Any, source: WorkerSocket) -> None:
        if isinstance(message, Welcome):
            self.proxies[source] = message.sender
        elif isinstance(message, Submit):
            self.running[message.request_id] = (message, 0)
        elif isinstance(message, Cancel):
            self.running.pop(message.request_id, None)

    def step(self) -> None:
        frames = []
        for name, (submit, made) in list(self.running.items()):
            last = made + 1 == self.tokens
            frame = Tokens(
                self.name, submit.sender, name, submit.attempt, made, [WORD], finish_reason="length" if last else None,
                generated_tokens=made + 1 if last else None, prompt_tokens=len(submit.prompt), cached_tokens=0,
                computed_tokens=len(submit.prompt) if made == 0 else None, queue_seconds=0.0 if made == 0 else None,
            )  # fmt: skip
            frames.append(frame)
            self.running[name] = (submit, made + 1)
            if last:
                del self.running[name]
        for each, proxy in self.proxies.items():
            for message in joined([frame for frame in frames if frame.receiver == proxy], with_logits=True):
                while not each.send(message):
                    self.poller.wait(0.001)


def bare_app(port: int, tokens: int, rate: float) -> None:
    """Run the floor: every stream gets the same bytes at the same moments, from one timer for all."""
    from sanic import Request, Sanic
    from sanic.config import Config

    bare: Sanic[Any, Any] = Sanic("bare", config=Config({}, env_prefix=None), configure_logging=False)

    async def events(request: Request) -> None:
        response = await request.respond(content_type="text/event-stream")
        for _ in range(tokens):
            await bare.ctx.step.wait()
            await response.send(CHUNK)
        await response.eof()

    class BenchStep:
        """The step that all streams wait for; it wakes each of them once."""

        def __init__(self) -> None:
            self.waiters: list[asyncio.Future[None]] = []

        async def wait(self) -> None:
            self.waiters.append(asyncio.get_running_loop().create_future())
            await self.waiters[-1]

        async def run(self) -> None:
            while True:
                await asyncio.sleep(1 / rate)
                waiting, self.waiters = self.waiters, []
                for waiter in waiting:
                    waiter.set_result(None)

    async def start_steps(bare: Any) -> None:
        bare.ctx.step = BenchStep()
        bare.add_task(bare.ctx.step.run())

    bare.add_route(events, "/v1/completions", methods=["POST"])
    bare.register_listener(start_steps, "before_server_start")
    bare.run("127.0.0.1", port, single_process=True, motd=False, access_log=False)


async def client(port: int, tokens: int) -> int:
    """Read one streamed answer; return the number of events with data in it."""
    body = json.dumps({"model": MODEL, "prompt": [WORD] * 32, "max_tokens": tokens, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    events = 0
    while data := await reader.read(1 << 16):
        events += data.count(b"data: ")
    writer.close()
    return events


async def clients(port: int, streams: int, tokens: int) -> int:
    return sum(await asyncio.gather(*(client(port, tokens) for _ in range(streams))))


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads of a process, to the microsecond; the clock's number is as
    clock_getcpuclockid(3) makes it."""
    return time.clock_gettime((~pid << 3) | 2)


def cost(servers: Sequence[int], port: int, streams: int, tokens: int) -> dict[str, Any]:
    """Return the CPU microseconds of the servers' processes for each token."""
    asyncio.run(clients(port, min(8, streams), 4 if streams > 8 else tokens))
    before, began = list(map(cpu_seconds, servers)), time.perf_counter()
    events = asyncio.run(clients(port, streams, tokens))
    each = [cpu_seconds(server) - start for server, start in zip(servers, before, strict=True)]
    wall, used = time.perf_counter() - began, sum(each)
    made = streams * tokens
    more = {"shares": [round(one / used, 2) for one in each], "tokens_per_cpu_second": round(made / max(each))}
    return (more if len(servers) > 1 else {}) | {
        "us_per_token": round(used * 1e6 / made, 1),
        "tokens_per_second": round(made / wall),
        "events_per_token": round(events / made, 3),
    }


def start(*arguments: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, *map(str, arguments)], stderr=subprocess.DEVNULL)


def wait_for(port: int, process: "subprocess.Popen[bytes]", path: str, status: bytes) -> None:
    """Wait until the server answers with this status."""
    wakeup = threading.Event()
    while process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as asked:
                asked.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
                if asked.recv(64).split()[1:2] == [status]:
                    return
        except OSError:
            pass
        wakeup.wait(0.1)
    raise RuntimeError("the server ended before it answered")


def topology(port: int) -> list[dict[str, Any]]:
    with urlopen(f"http://127.0.0.1:{port}/admin/topology", timeout=10) as answer:
        rows: list[dict[str, Any]] = json.load(answer)["processes"]
    return rows


def measure_proxy(arguments: argparse.Namespace, folder: str) -> list[dict[str, float]]:
    control, proxies = f"ipc://{folder}/control", arguments.proxies
    controls = [control, *(f"{control}-{number}" for number in range(1, proxies))]
    options = ("--role", "proxy", "--port", arguments.port, "--control", control, "--proxies", proxies)
    launch = start(ROOT / "app.py", "launch", *options)
    worker = start(__file__, "--be-worker", ",".join(controls), "--tokens", arguments.tokens, "--rate", arguments.rate)
    try:
        wait_for(arguments.port, launch, "/ready", b"200")
        pids = [row["pid"] for row in topology(arguments.port) if row["role"] == "proxy"]
        return [cost(pids, arguments.port, streams, arguments.tokens) for streams in arguments.streams]
    finally:
        worker.kill()
        launch.send_signal(signal.SIGINT)
        launch.wait(30)


def measure_floor(arguments: argparse.Namespace) -> list[dict[str, float]]:
    bare = start(
        __file__, "--be-bare", "--port", arguments.port, "--tokens", arguments.tokens, "--rate", arguments.rate
    )
    try:
        wait_for(arguments.port, bare, "/v1/completions", b"405")
        return [cost([bare.pid], arguments.port, n, arguments.tokens) for n in arguments.streams]
    finally:
        bare.kill()
        bare.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rate", type=float, default=10.0, help="steps a second")
    parser.add_argument("--port", type=int, default=8124)
    parser.add_argument("--proxies", type=int, default=1)
    parser.add_argument("--be-worker", metavar="ENDPOINT", help=argparse.SUPPRESS)
    parser.add_argument("--be-bare", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be_worker:
        SyntheticWorker(arguments.be_worker.split(","), arguments.tokens, arguments.rate).serve()
    if arguments.be_bare:
        bare_app(arguments.port, arguments.tokens, arguments.rate)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        proxy, floor = measure_proxy(arguments, folder), measure_floor(arguments)
    for streams, ours, bare in zip(arguments.streams, proxy, floor, strict=True):
        print(json.dumps({"streams": streams, "proxy": ours, "floor": bare}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
