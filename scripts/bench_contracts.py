# SPDX-License-Identifier: Apache-2.0
"""Measure what contracts cost (docs/guide/contracts.md), by processor time, so that a busy machine spoils little of it.

    taskset -c 1 python scripts/bench_contracts.py receipts [--model NAME|PATH] [--rows 1 8 32] [--rounds 60]
    taskset -c 1 python scripts/bench_contracts.py leases [--leases 1000] [--rows 1 8] [--rounds 60] [--repeats 10]
    python scripts/bench_contracts.py record --url http://localhost:8000 [--rows 8] [--rounds 10]

`receipts`: steps of a real engine in one process, in which each of so many sequences computes one token, by turns
without receipts, with them, and with them where the head's highest logits of groups are not used (`scanned`). `leases`:
whole turns of a real worker's thread, each with one step of its engine, by turns without a lease, with one, and with so
many; twice without, which tells what the machine's noise is. Each repeat has new sequences, so that contexts stay short
and a turn is cheap. `record`: a running launch of this machine, whose proxies and workers answer so many requests at
once, by turns while nothing is recorded and while all is; it has to serve nobody else. Prints one JSON object a line:
medians in milliseconds of processor time, of a step or of 1,000 tokens, and median and quartiles of the ratios of
neighbours in percent, and within what their median lies by chance.
"""

import argparse
import http.client
import json
import math
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), *map(str, sorted((ROOT / "tests/support").iterdir()))]

import app  # noqa: E402, F401

CACHE = Path.home() / ".cache" / "pontil"
CONTEXT, PART, TOKENS = 300, 5, 64
# Turns after a change of leases in which it is told.
SETTLES = 3
# Seconds of a lease: longer than any run.
DAY = 86400

Ways = dict[str, Callable[[], float]]


def by_turns(ways: Ways, rounds: int) -> dict[str, list[float]]:
    """Take each way's time by turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        names = list(ways) if number % 2 else [*reversed(ways)]
        for name in names:
            found[name].append(ways[name]())
    return found


def compared(found: dict[str, list[float]]) -> dict[str, Any]:
    """Compare the times of each way with their neighbours of the first one."""
    first = found[next(iter(found))]
    told: dict[str, Any] = {name: round(1000 * statistics.median(times), 3) for name, times in found.items()}
    for name in [*found][1:]:
        ratios = sorted(time / base for time, base in zip(found[name], first, strict=True))
        told[f"{name} more, %"] = round(100 * (statistics.median(ratios) - 1), 2)
        told[f"{name} quartiles, %"] = [round(100 * (ratios[len(ratios) * part // 4] - 1), 2) for part in (1, 3)]
        # Where the median of all such ratios lies in 19 cases of 20, by the binomial distribution of ranks.
        middle, width = len(ratios) / 2, 0.98 * math.sqrt(len(ratios))
        ranks = max(0, math.floor(middle - width)), min(len(ratios) - 1, math.ceil(middle + width))
        told[f"{name} median within, %"] = [round(100 * (ratios[rank] - 1), 2) for rank in ranks]
    return told


def used(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def receipts(arguments: argparse.Namespace) -> Iterable[dict[str, Any]]:
    import torch
    from bench_engine import open_engine, sequence_of

    from pontil.gpu_ops.kernels.kernel_set import open_kernels
    from pontil.runtime.engine.sampling import sampler
    from pontil.runtime.engine.sequences.sequence import FinishReason
    from pontil.runtime.receipts.chain import TOP_LOGITS

    torch.set_num_threads(1)
    library = open_kernels("auto", 1, CACHE, print)
    whole = argparse.Namespace(
        model=arguments.model, dtype="bfloat16", quantization="none", kv_cache_dtype="auto", contexts=None,
        context=CONTEXT, rounds=4 * arguments.rounds, prompt=CONTEXT, rows=arguments.rows,
    )  # fmt: skip
    engine, _ = open_engine(whole, library)
    untyped = vars(sampler)
    by_groups = untyped["top_logits_by"]

    def step(most: int, search: Any) -> float:
        untyped["top_logits_by"] = search
        for sequence in [one for choices in engine.sequences.values() for one in choices]:
            sequence.params = replace(sequence.params, top_logits=most)
        return used(engine.step)

    def scanned(kernels: Any, logits: Any, rows: Any, count: int, groups: Any) -> Any:
        return by_groups(kernels, logits, rows, count)

    ways: Ways = {
        "plain": lambda: step(0, by_groups),
        "receipts": lambda: step(TOP_LOGITS, by_groups),
        "scanned": lambda: step(TOP_LOGITS, scanned),
    }
    for rows in arguments.rows:
        for number in range(rows):
            engine.add(sequence_of(engine, number, CONTEXT, 4 * arguments.rounds))
        for _ in range(5):
            engine.step()
        assert len(engine.sequences) == rows
        yield {"rows": rows} | compared(by_turns(ways, arguments.rounds))
        for name in list(engine.sequences):
            engine.end(name, FinishReason.ABORTED)


def leasing(arguments: argparse.Namespace, folder: Path) -> tuple[Any, Any]:
    """Return a real worker that holds one lease, and its proxy."""
    from workers import ScriptedProxy, open_worker

    from pontil.runtime.loaders.builtin import resolve_model

    proxy = ScriptedProxy(folder)
    room: dict[str, Any] = {"kv_cache_memory": 1 << 30, "max_model_len": 8192, "max_num_batched_tokens": 2048}
    room["max_num_seqs"] = max(arguments.rows) + 1
    worker = open_worker(resolve_model(arguments.model, CACHE), folder, "mixed:0", "mixed", **room)
    proxy.admit(worker)
    wish = {"id": "first", "owner": "ada", "seconds": 3600, "tokens": 160, "must": True}
    proxy.submit(worker, "leased", random_prompt(0), greedily(1), lease=wish)
    proxy.finish("leased")
    return proxy, worker


def random_prompt(number: int) -> list[int]:
    chance = random.Random(number)
    return [chance.randrange(1000, 40000) for _ in range(CONTEXT)]


def greedily(tokens: int) -> Any:
    from pontil.runtime.sampling_params import SamplingParams

    return SamplingParams(max_tokens=tokens, seed=1, temperature=0.0, ignore_eos=True)


class LeaseTurns:
    """Turns of a worker with so many leases, each on the same ten blocks: what a lease costs a turn depends on no
    block. `inside` has the seconds in their code."""

    def __init__(self, proxy: Any, worker: Any) -> None:
        self.proxy, self.worker, self.book = proxy, worker, worker.leases.book
        (self.first,) = self.book.leases.values()
        self.spent = CallTime(type(worker.leases), ("submitted", "computed", "tick", "tell"))
        self.inside: dict[int, list[float]] = {}

    def seconds(self, count: int) -> float:
        """Return the median processor time of the worker's thread for a turn with so many leases."""
        from pontil.runtime.cache.leases.lease import LeaseTerm, PrefixLease

        first, now = self.first, self.first.term.began
        for name in list(self.book.leases):
            self.book.release(name, now)
        for number in range(count):
            term = LeaseTerm(first.term.size, now, DAY + number % 60)
            self.book.grant(PrefixLease(f"lease-{number}", "ada", first.keys, first.tokens, "proxy", term), now)
        times = [self.turn(count) for _ in range(SETTLES + PART)]
        assert len(self.book.leases) == count
        return statistics.median(times[SETTLES:])

    def turn(self, count: int) -> float:
        self.spent.seconds, start = 0.0, time.thread_time()
        self.worker.turn()
        seconds = time.thread_time() - start
        self.inside.setdefault(count, []).append(self.spent.seconds)
        for message in self.proxy.server.receive_all():
            self.proxy.hear(message)
        return seconds

    def repeat(self, name: str, rows: int, ways: Ways, rounds: int) -> dict[str, list[float]]:
        """Take the ways by turns while so many new sequences, of this name, are answered."""
        for number in range(rows):
            self.proxy.submit(self.worker, f"{name}-{number}", random_prompt(1 + number), greedily(4096))
        self.proxy.turn_until(partial(all_begun, self.proxy, rows + 1))
        found = by_turns(ways, rounds)
        assert len(self.worker.requests) == rows, "all were there all the time"
        for number in range(rows):
            self.proxy.cancel(self.worker, f"{name}-{number}")
        self.proxy.turn_until(lambda: not self.worker.requests)
        self.proxy.answers = {"leased": self.proxy.answers["leased"]}
        return found


def leases(arguments: argparse.Namespace) -> Iterable[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        proxy, worker = leasing(arguments, Path(folder))
        turns = LeaseTurns(proxy, worker)
        counts = {"none": 0, "none again": 0, "one": 1, f"{arguments.leases}": arguments.leases}
        ways: Ways = {name: partial(turns.seconds, count) for name, count in counts.items()}
        for rows in arguments.rows:
            found: dict[str, list[float]] = {name: [] for name in ways}
            for number in range(arguments.repeats):
                for name, times in turns.repeat(f"{rows}-{number}", rows, ways, arguments.rounds).items():
                    found[name] += times
            told = {"rows": rows, "parts": len(found["none"])} | compared(found)
            for count in sorted({*counts.values()}):
                told[f"{count} in their code, us"] = round(1e6 * statistics.median(turns.inside.pop(count)), 1)
            yield told
        worker.close()


class CallTime:
    """The seconds that calls of some methods of a class take from now on."""

    def __init__(self, kind: type, names: Iterable[str]) -> None:
        self.seconds, self.depth = 0.0, 0
        for name in names:
            setattr(kind, name, self.timed(getattr(kind, name)))

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            if self.depth:
                return function(*given)
            self.depth, start = 1, time.perf_counter()
            try:
                return function(*given)
            finally:
                self.seconds += time.perf_counter() - start
                self.depth = 0

        return call


def all_begun(proxy: Any, count: int) -> bool:
    return sum(bool(one.frames) for one in proxy.answers.values()) >= count


def record(arguments: argparse.Namespace) -> Iterable[dict[str, Any]]:
    import psutil

    address = urlsplit(arguments.url)
    processes, model = asked(address, "GET", "/admin/topology", None)["processes"], model_at(address)
    pids = {row["name"]: row["pid"] for row in processes if row.get("pid")}
    kinds = {"proxies": "proxy", "workers": ""}
    numbers = iter(range(1 << 30))

    def seconds() -> dict[str, float]:
        times = {name: sum(psutil.Process(pid).cpu_times()[:2]) for name, pid in pids.items()}
        proxies = sum(time for name, time in times.items() if name.startswith(kinds["proxies"]))
        return {"proxies": proxies, "workers": sum(times.values()) - proxies}

    def one(number: int) -> None:
        body = {"model": model, "prompt": f"Number {number}:", "max_tokens": TOKENS, "ignore_eos": True}
        asked(address, "POST", "/v1/completions", body | {"seed": number})

    def part(is_recorded: bool) -> dict[str, float]:
        count = 2 * arguments.rows[0]
        recorded = RecordReader(address, count) if is_recorded else None
        before = seconds()
        with ThreadPoolExecutor(arguments.rows[0]) as pool:
            list(pool.map(one, [next(numbers) for _ in range(count)]))
        if recorded is not None:
            recorded.end()
        after = seconds()
        return {kind: (after[kind] - before[kind]) / (count * TOKENS) for kind in after}

    part(False)
    plain, with_record = list[dict[str, float]](), list[dict[str, float]]()
    for _ in range(arguments.rounds):
        plain.append(part(False))
        with_record.append(part(True))
    for kind in kinds:
        bases, times = ([one[kind] for one in those] for those in (plain, with_record))
        ratios = [time / base for time, base in zip(times, bases, strict=True)]
        yield {
            "of": kind, "rows": arguments.rows[0],
            "plain": round(1e6 * statistics.median(bases), 1), "recorded": round(1e6 * statistics.median(times), 1),
            "recorded more, %": round(100 * (statistics.median(ratios) - 1), 2),
        }  # fmt: skip


def model_at(address: Any) -> str:
    return str(asked(address, "GET", "/v1/models", None)["data"][0]["id"])


def asked(address: Any, method: str, path: str, body: dict[str, Any] | None) -> Any:
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=600)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"content-type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        assert response.status == 200, data
        return json.loads(data)
    finally:
        connection.close()


class RecordReader:
    """A record of so many requests, which ends with them."""

    def __init__(self, address: Any, count: int) -> None:
        self.connection, self.left = http.client.HTTPConnection(address.hostname, address.port, timeout=60), count
        self.connection.request("GET", "/admin/record")
        self.response = self.connection.getresponse()
        assert self.response.readline().startswith(b'{"pontil_record"')
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self) -> None:
        while self.left and (line := self.response.readline()):
            self.left -= line.startswith(b'{"answers"')

    def end(self) -> None:
        self.thread.join(60)
        assert not self.left, f"{self.left} requests were not recorded"
        self.connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("of", choices=["receipts", "leases", "record"])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--leases", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--url", default="http://localhost:8000")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for told in {"receipts": receipts, "leases": leases, "record": record}[arguments.of](arguments):
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
