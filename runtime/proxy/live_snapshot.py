# SPDX-License-Identifier: Apache-2.0
"""The state of a proxy and its workers at one moment, as JSON values for the live page."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pontil.runtime.accounting.counts import DECODE
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import FRESH
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.request import Request

# Rows of requests that a snapshot has, the newest.
SHOWN_REQUESTS = 30
# Keys that sent prompts last.
SHOWN_KEYS = 16
# Pairs of workers between which KV moves, the busiest.
SHOWN_FLOWS = 64
# Seconds over which a rate is measured: workers tell their counters twice a second, so that a shorter time would jump.
WINDOW = 3.0


class RateMeter:
    """The rate of one counter that only grows. One that shrinks belongs to another process, and begins anew."""

    def __init__(self) -> None:
        self.samples: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> float:
        """Take the counter's value; return its growth per second since about WINDOW ago, 0 at first."""
        samples = self.samples
        if samples and value < samples[-1][1]:
            samples.clear()
        samples.append((now, value))
        while len(samples) > 2 and samples[1][0] <= now - WINDOW:
            samples.popleft()
        seconds = now - samples[0][0]
        return (value - samples[0][1]) / seconds if seconds > 0 else 0.0


class RateMeters:
    """The meters of many counters, by name. Those that are not read between two calls of `sweep` are forgotten."""

    def __init__(self) -> None:
        self.meters: dict[str, RateMeter] = {}
        self.read: set[str] = set()

    def rate(self, name: str, now: float, value: float) -> float:
        """Return the rate of the counter of this name, which has the value now."""
        self.read.add(name)
        return self.meters.setdefault(name, RateMeter()).add(now, value)

    def sweep(self) -> None:
        self.meters = {name: meter for name, meter in self.meters.items() if name in self.read}
        self.read.clear()


class LiveSnapshot:
    """Takes snapshots of one proxy. Rates are measured from one to the next, so take them regularly."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.rates = RateMeters()

    def take(self) -> dict[str, Any]:
        """Return the snapshot of now. Shares in it are from 0 to 1, rates per second, times in seconds; `at` is the
        Unix time."""
        now = self.proxy.clock()
        processes, flows = self.processes(now), self.flows(now)
        snapshot = {
            "at": round(time.time(), 3),
            "proxy": self.about(now),
            "totals": self.totals(processes, flows, now),
            "processes": processes,
            "flows": flows,
            "requests": [row.to_json() for row in self.proxy.timelines.rows(SHOWN_REQUESTS)],
            "prompts": self.proxy.books.reuse.rows()[:SHOWN_KEYS],
            "changes": self.proxy.changes.rows(),
            "load": {
                "wanted": dict(self.proxy.load.wanted()),
                "planner_errors": {name: round(error, 4) for name, error in self.proxy.load.errors.items()},
            },
        }
        self.rates.sweep()
        return snapshot

    def about(self, now: float) -> dict[str, Any]:
        """Return what this proxy says of itself. It can have workers changed while a supervisor is heard."""
        proxy, config = self.proxy, self.proxy.config
        age = proxy.changes.table_age
        return {
            "name": config.name,
            "number": config.number,
            "proxies": config.proxies,
            "version": config.version,
            "model": config.served_model_name,
            "embedding_model": config.served_embedding_model_name,
            "objection": proxy.readiness.objection,
            "draining": proxy.readiness.is_draining,
            "supervised": age is not None,
            "table_age": None if age is None else round(age, 1),
            "is_stale": age is not None and age > FRESH,
        }

    def totals(self, processes: Sequence[Mapping[str, Any]], flows: Sequence[Mapping[str, Any]], now: float) -> Any:
        """Return the sums over all workers, and the requests of this proxy."""
        requests = [request for request in self.proxy.requests.values() if not request.trial]
        running = sum(request.times.begun for request in requests)
        figures = [row["figures"] for row in processes if "figures" in row]
        return {
            "running": running,
            "waiting": len(requests) - running,
            "queued": sum(len(admission.queue) for admission in self.proxy.admissions.by_group.values()),
            "delivered_per_second": round(self.rates.rate("delivered", now, self.proxy.metrics.delivered), 1),
            "prompt_tokens_per_second": round(sum(figure["prompt_tokens_per_second"] for figure in figures), 1),
            "kv_bytes_per_second": round(sum(flow["bytes_per_second"] for flow in flows)),
        }

    def processes(self, now: float) -> list[dict[str, Any]]:
        """Return the rows of /admin/topology with the figures of registered workers. A `managed` one is a process of
        this proxy's supervisor."""
        rows = self.proxy.topology()
        managed_names = {row.name for row in self.proxy.registry.processes.rows}
        workers = {(worker.hello.name, worker.hello.pid): worker for worker in self.proxy.registry.workers.values()}
        for row in rows:
            row["managed"] = row["name"] in managed_names and row["state"] != "REFUSED"
            if (worker := workers.get((row["name"], row["pid"]))) is not None:
                row["figures"] = self.figures(worker, now)
        return rows

    def figures(self, worker: RegisteredWorker, now: float) -> dict[str, Any]:
        """Return what a worker's heartbeats tell. Of a process that hears several proxies, tokens are this one's."""
        counters, hello = worker.counters, worker.hello

        def rate(name: str) -> float:
            return self.rates.rate(f"{hello.sender} {name}", now, counters.get(name, 0))

        steps, busy = rate("steps"), rate("step_microseconds")
        queries, hits = counters.get("prefix_cache_queries", 0), counters.get("prefix_cache_hits", 0)
        has_cache = worker.has_cache and worker.capacity > 0
        return {
            "running": worker.running,
            "waiting": worker.waiting,
            "in_flight": worker.in_flight + worker.others.in_flight,
            "seats": worker.seats,
            "kv_blocks": worker.capacity if has_cache else None,
            "kv_used": round(1 - min(worker.free_blocks, worker.capacity) / worker.capacity, 4) if has_cache else None,
            "prefix_hits": round(hits / queries, 4) if queries else None,
            "tokens_per_second": round(rate("generated_tokens"), 1),
            "prompt_tokens_per_second": round(rate("prompt_tokens_computed"), 1),
            "steps_per_second": round(steps, 1),
            "step_seconds": round(busy / steps / 1e6, 6) if steps else None,
            "kv_bytes_per_second": round(rate("kv_transfer_bytes")),
        }

    def flows(self, now: float) -> list[dict[str, Any]]:
        """Return the pairs of workers between which KV moves, or has since this proxy began: how many handoffs are
        open, and the bytes that requests moved lately."""
        moved_bytes, handoffs = dict(self.proxy.metrics.pulled), dict[str, int]()
        for request in self.proxy.requests.values():
            route = request.attempts.route
            if route is not None and route.is_pair and not request.trial:
                name = route.name
                moved_bytes[name] = moved_bytes.get(name, 0) + request.reports.pulled.bytes
                handoffs[name] = handoffs.get(name, 0) + is_handed_over(request)
        names = {worker.hello.name for worker in self.proxy.registry.workers.values()}
        flows = []
        for name in dict.fromkeys((*handoffs, *moved_bytes)):
            giving, arrow, taking = name.partition(">")
            rate = self.rates.rate(f"pulled {name}", now, moved_bytes.get(name, 0))
            if arrow and {giving, taking} <= names:
                flow = {"from": giving, "to": taking, "open": handoffs.get(name, 0), "bytes_per_second": round(rate)}
                flows.append(flow | {"bytes": moved_bytes.get(name, 0)})
        flows.sort(key=lambda flow: (flow["open"], flow["bytes_per_second"], flow["bytes"]), reverse=True)
        return flows[:SHOWN_FLOWS]


def is_handed_over(request: Request) -> bool:
    """Return whether the request's attempt still waits for the decode worker's first tokens."""
    return bool(request.attempts.phases) and not any(phase == DECODE for phase, _ in request.attempts.heard)
