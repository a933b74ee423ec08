# SPDX-License-Identifier: Apache-2.0
"""The cost of tokens and requests in the proxy and in a worker, with 1,000 streams in flight and a model of no cost.

    python scripts/bench_proxy_load.py --streams 1000 --tokens 100 500 --seconds 20

A real proxy and real workers, each a process, over their real sockets; what is not real is the runner: it computes
nothing, and returns --rate times a second. So many clients ask without a pause, each with a prompt as long as those of
scripts/data/sharegpt_lengths.csv, in turn for each number of --tokens. For each, after all have begun: the processor's
microseconds in the proxy and in the workers by token; tokens a second; milliseconds between two tokens of a stream,
and of GET /health, which another process asks for 20 times a second; `hold_ms`, the most of the processor that the
proxy's event loop took before a timer had its turn. From the first and the last number follow `us_token` and
`us_request`, what one of each costs. With --pair there are a prefill and a decode worker instead of one for both. With
fewer cores than processes the times say little, those of the processor more.
"""

import argparse
import asyncio
import csv
import http.client
import itertools
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import app  # noqa: E402, F401
from pontil.launcher.child.fork.forked import quick_import  # noqa: E402
from pontil.launcher.host.ports import bound_socket  # noqa: E402
from pontil.runtime.loaders.builtin import resolve_model  # noqa: E402

MODEL = "smollm2-135m-instruct"
LENGTHS = ROOT / "scripts" / "data" / "sharegpt_lengths.csv"
WORDS = ("time", "person", "year", "way", "day", "thing", "world", "life", "hand", "part", "child", "eye", "woman")
CONTEXT, LONGEST_PROMPT = 4096, 3000
# Seconds between two timers of the proxy's loop, and between two questions for its health.
LOOK, ASK = 0.005, 0.05
# Ids that the runner draws in turn: words of SmolLM2.
DRAWN = (338, 665, 1042, 253, 281)


def told(kind: str, value: Any) -> None:
    print(json.dumps([kind, value]), flush=True)


class BenchReporter:
    """Reporter that prints that its process is ready."""

    def ready(self, **facts: Any) -> None:
        told("ready", facts.get("url"))

    def failed(self, reason: str) -> None:
        told("failed", reason)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values, **named: None


# The processes.


def be_proxy(values: dict[str, Any]) -> None:
    """Serve, and print for each SIGUSR1 the most of the processor that the loop took between two turns of a timer since
    the one before."""
    with quick_import():
        from pontil.http.server.service import run_proxy
        from pontil.runtime.config.proxy_config import proxy_config
        from pontil.runtime.proxy.proxy import Proxy

    start, worst = Proxy.start, [0.0]

    def watch(loop: asyncio.AbstractEventLoop, before: float) -> None:
        worst[0] = max(worst[0], time.thread_time() - before)
        loop.call_later(LOOK, watch, loop, time.thread_time())

    def tell() -> None:
        told("hold", worst[0])
        worst[0] = 0.0

    def started(self: Proxy, on_tick: Callable[[int], None] | None = None) -> None:
        start(self, on_tick)
        loop = asyncio.get_running_loop()
        watch(loop, time.thread_time())
        loop.add_signal_handler(signal.SIGUSR1, tell)

    Proxy.start = started  # type: ignore[method-assign]
    reporter: Any = BenchReporter()
    run_proxy(proxy_config(values), reporter, sys.stdin.fileno())


class FreeRunner:
    """A runner that computes nothing: each step is over `period` seconds after the one before."""

    answers_are_found, keeps_states = False, False

    def __init__(self, period: float) -> None:
        self.period, self.free_at = period, 0.0

    def launch(self, batch: Any) -> Any:
        from pontil.runtime.engine.runner.runner import Launched
        from pontil.runtime.engine.sampling.sampler import Sampled

        due = self.free_at = max(self.free_at + self.period, time.monotonic())
        spans = [span for span in batch.spans if span.samples]
        drawn = [
            Sampled(span.sequence, choice, [DRAWN[span.start % len(DRAWN)]], 1, [])
            for span in spans
            for choice in span.sequence.choices
        ]
        # The step of a device at this rate, in which nothing is computed here.
        time.sleep(max(0.0, due - time.monotonic()))
        return Launched(lambda: drawn)


def be_worker(values: dict[str, Any], rate: float) -> None:
    # As in a launch: the garbage collector never looks at what is imported here.
    with quick_import():
        import torch

        from pontil.runtime.config.worker_config import worker_config
        from pontil.runtime.worker.entry import serve
        from pontil.runtime.worker.generate.worker import make_worker
        from pontil.runtime.worker.start.assembly import assemble

    torch.set_num_threads(1)
    config = worker_config(values)
    reporter: Any = BenchReporter()
    machine = assemble(config, reporter)
    machine.engine.runner = FreeRunner(1 / rate)  # type: ignore[assignment]
    serve(make_worker(config, machine, reporter))


def prompts(seed: int) -> Iterator[str]:
    """Yield prompts of about as many tokens as those of the trace, each another one."""
    with LENGTHS.open() as file:
        lengths = [int(row["prompt_tokens"]) for row in csv.DictReader(file)]
    chance = random.Random(seed)
    for number in itertools.count():
        length = min(lengths[number % len(lengths)], LONGEST_PROMPT)
        yield f"{number} " + " ".join(chance.choices(WORDS, k=max(1, length - 2)))


class BenchClient(asyncio.Protocol):
    """One connection that asks again and again. `gaps` are the seconds between two parts of an answer."""

    def __init__(self, load: "BenchLoad") -> None:
        self.load, self.gaps = load, list[float]()
        self.transport: Any = None
        self.last = 0.0
        self.tokens = self.answers = self.failed = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.last = 0.0
        self.transport.write(self.load.question())

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        events = data.count(b'"text":')
        if events and self.last:
            self.gaps.append(now - self.last)
        if events:
            self.last = now
            # The last event of an answer has no token.
            self.tokens += events
        if b"data: [DONE]" in data:
            self.tokens -= 1
            self.answers += 1
            self.load.begun.add(self)
            self.ask()
        elif not data.startswith(b"HTTP/1.1 200") and data.startswith(b"HTTP/1.1"):
            self.failed += 1
        elif events:
            self.load.begun.add(self)


class BenchLoad:
    """So many clients of one server."""

    def __init__(self, port: int, tokens: int, seed: int) -> None:
        self.port, self.tokens, self.prompts = port, tokens, prompts(seed)
        self.clients: list[BenchClient] = []
        self.begun: set[BenchClient] = set()

    def question(self) -> bytes:
        body = json.dumps(
            {
                "model": MODEL,
                "prompt": next(self.prompts),
                "max_tokens": self.tokens,
                "stream": True,
                "ignore_eos": True,
            }
        ).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

    async def connect(self, streams: int) -> None:
        loop = asyncio.get_running_loop()
        for number in range(streams):
            _, client = await loop.create_connection(lambda: BenchClient(self), "127.0.0.1", self.port)
            self.clients.append(client)
            if number % 16 == 15:
                await asyncio.sleep(0.05)
        while len(self.begun) < streams and not any(one.failed for one in self.clients):
            await asyncio.sleep(0.1)
        assert not any(one.failed for one in self.clients), "requests were refused"

    def counts(self) -> tuple[int, int]:
        return sum(one.tokens for one in self.clients), sum(one.answers for one in self.clients)


def be_health(port: int) -> None:
    """Ask for the health again and again; print the milliseconds when the standard input ends."""
    found, ended = list[float](), threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while not ended.wait(ASK):
        begun = time.perf_counter()
        connection.request("GET", "/health")
        connection.getresponse().read()
        found.append(1e3 * (time.perf_counter() - begun))
    told("health", found)


class BenchProcess:
    """A process of this script."""

    def __init__(self, *arguments: object, **options: Any) -> None:
        command = [sys.executable, __file__, *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, **options
        )

    def heard(self, kind: str) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said, value = json.loads(line)
            if said == kind:
                return value
            assert said != "failed", value
        raise RuntimeError("a process of the bench ended before its time")

    @property
    def cpu(self) -> float:
        """Return the processor's seconds of all threads; the clock's number is as clock_getcpuclockid(3) makes it."""
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the 95th percentile and the most."""
    parts = statistics.quantiles(values, n=20)
    return {"p50": round(parts[9], 2), "p95": round(parts[18], 2), "max": round(max(values), 2)}


async def measured(bench: "ProxyLoadBench", tokens: int, streams: int, seconds: float) -> dict[str, Any]:
    load = BenchLoad(bench.port, tokens, seed=tokens)
    await load.connect(streams)
    asking = BenchProcess("--be-health", bench.port)
    for client in load.clients:
        client.gaps.clear()
    bench.hold()
    before, began = load.counts(), time.perf_counter()
    used = [one.cpu for one in bench.processes]
    await asyncio.sleep(seconds)
    spent = [one.cpu - start for one, start in zip(bench.processes, used, strict=True)]
    wall, after, hold = time.perf_counter() - began, load.counts(), bench.hold()
    health, _ = asking.process.communicate()
    assert not any(one.failed for one in load.clients), "requests were refused"
    for client in load.clients:
        client.transport.abort()
    made, answers = after[0] - before[0], after[1] - before[1]
    gaps = [1e3 * gap for client in load.clients for gap in client.gaps]
    return {
        "tokens": tokens, "streams": streams, "tokens_per_second": round(made / wall), "requests": answers,
        "proxy_us": round(1e6 * spent[0] / made, 1), "worker_us": round(1e6 * sum(spent[1:]) / made, 1),
        "between_tokens_ms": spread(gaps), "health_ms": spread(json.loads(health)[1]), "hold_ms": round(1e3 * hold, 1),
        "spent": {"proxy": spent[0], "worker": sum(spent[1:])}, "made": made,
    }  # fmt: skip


class ProxyLoadBench:
    """The processes: the proxy first, then the workers."""

    def __init__(self, folder: Path, seats: int, rate: float, roles: Sequence[str]) -> None:
        listener = bound_socket("--port", "127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        model = resolve_model(MODEL, Path.home() / ".cache" / "pontil")
        config = {
            "host": "127.0.0.1", "port": 0, "model": str(model), "served_model_name": MODEL, "version": "0",
            "control": f"ipc://{folder}/control", "listeners": [listener.fileno()], "usage_log": f"{folder}/usage",
        }  # fmt: skip
        self.processes = [BenchProcess("--be-proxy", json.dumps(config), pass_fds=[listener.fileno()])]
        listener.close()
        for number, role in enumerate(roles):
            worker = {
                "name": f"{role}:{number}", "role": role, "device": "cpu", "cores": [], "model": str(folder / "model"),
                "served_model_name": MODEL, "control": config["control"],
                "peer_endpoint": f"ipc://{folder}/peer{number}", "kernels": "torch", "max_num_seqs": seats,
                "max_num_batched_tokens": 8192, "max_interleaved_tokens": 8192, "kv_cache_memory": 512 << 20,
            }  # fmt: skip
            self.processes.append(BenchProcess("--be-worker", json.dumps(worker), "--rate", rate))
        for process in self.processes:
            process.heard("ready")

    def hold(self) -> float:
        """Return the longest hold of the proxy's loop since the last call."""
        self.processes[0].process.send_signal(signal.SIGUSR1)
        return float(self.processes[0].heard("hold"))

    def end(self) -> None:
        for process in self.processes:
            process.end()


def write_model(folder: Path) -> None:
    """Write a model with the vocabulary of the proxy's, whose KV takes little memory."""
    sys.path.append(str(ROOT / "tests" / "support" / "models"))
    from tiny_llama import write_tiny_llama

    write_tiny_llama(
        folder, vocab_size=49152, max_model_len=CONTEXT, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8,
        hidden_size=8, intermediate_size=16,
    )  # fmt: skip


def costs(rows: Sequence[dict[str, Any]], who: str) -> dict[str, float]:
    """Return what a token and a request cost in one process, if two measurements tell."""
    (a, x, p), (b, y, q) = [(row["made"], row["requests"], row["spent"][who]) for row in (rows[0], rows[-1])]
    size = a * y - b * x
    return {"us_token": round(1e6 * (p * y - q * x) / size, 1), "us_request": round(1e6 * (a * q - b * p) / size)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--rate", type=float, default=10.0, help="steps a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pair", action="store_true")
    parser.add_argument("--be-proxy", help=argparse.SUPPRESS)
    parser.add_argument("--be-worker", help=argparse.SUPPRESS)
    parser.add_argument("--be-health", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be_proxy:
        be_proxy(json.loads(arguments.be_proxy))
    elif arguments.be_worker:
        be_worker(json.loads(arguments.be_worker), arguments.rate)
    elif arguments.be_health:
        be_health(arguments.be_health)
    else:
        bench_all(arguments)
    return 0


def bench_all(arguments: argparse.Namespace) -> None:
    roles = ("prefill", "decode") if arguments.pair else ("mixed",)
    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name) / "model")
        bench = ProxyLoadBench(Path(name), arguments.streams + 24, arguments.rate, roles)
        # For a profiler.
        print([one.process.pid for one in bench.processes], file=sys.stderr, flush=True)
        try:
            rows = []
            for tokens in arguments.tokens:
                row = asyncio.run(measured(bench, tokens, arguments.streams, arguments.seconds))
                rows.append(row)
                print(json.dumps({key: row[key] for key in row if key not in ("spent", "made")}), flush=True)
            if len(rows) > 1:
                print(json.dumps({who: costs(rows, who) for who in ("proxy", "worker")}))
        finally:
            bench.end()


if __name__ == "__main__":
    sys.exit(main())
