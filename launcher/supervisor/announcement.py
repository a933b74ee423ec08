# SPDX-License-Identifier: Apache-2.0
"""The announcement of a launch: all children ready, then the self-test, then the line that says so."""

import json
from collections.abc import Sequence
from typing import Any

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState
from pontil.launcher.foundation.columns import aligned
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.logs.console import Console
from pontil.launcher.plan.topology import Topology
from pontil.runtime.foundation.number_ranges import spell


class SelfTestMonitor:
    """Requests self-tests. At the start it asks once all children are ready, and again if one was not ready meanwhile.
    A restarted proxy is asked as soon as it is ready, and nothing waits for its answer."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.asked_at: float | None = None

    def ask(self, proxies: Sequence[Child], now: float) -> None:
        """Ask the proxies that are ready and were not asked yet."""
        for child in proxies:
            running = child.running
            if self.wanted and running is not None and child.state is ChildState.READY and not running.testing:
                running.testing, running.tested, running.tests = True, None, running.tests + 1
                running.send({"kind": "self_test", "number": running.tests})
                self.asked_at = now

    def forget(self, proxies: Sequence[Child]) -> None:
        """Discard the tests under way: they do not cover the processes that will be announced."""
        for child in proxies:
            if child.running is not None:
                child.running.testing, child.running.tested = False, None

    def results(self, proxies: Sequence[Child]) -> list[dict[str, Any]] | None:
        """Return the results of every route from every proxy here; None as long as an answer is missing."""
        if not self.wanted:
            return []
        answers = [child.running.tested if child.running else None for child in proxies]
        if None in answers:
            return None
        return [route for answer in answers if answer is not None for route in answer.routes]

    def complaint(self, results: Sequence[dict[str, Any]] | None, now: float, limit: float) -> str | None:
        """Return the sentence to end the launch with, if it must end. The proxy limits each request itself; a proxy
        that does not answer for `limit` seconds is faulty."""
        if results is None:
            late = self.asked_at is not None and now - self.asked_at > limit
            return f"The self-test was not over after {limit:g} s: see the proxy's log above." if late else None
        wrong = next((result["error"] for result in results if "error" in result), None)
        return wrong and f"The self-test failed: {wrong}. Mend that, or start with --no-self-test."


NOTHING = "-"
PROCESSES = ("process", "device", "cores", "KV tokens", "KV dtype", "pid")
PAIRS = ("pair", "KV moved", "GB/s")


def overview(children: Sequence[Child], results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of two tables: the processes, and the worker pairs that the self-test used."""
    pairs = [pair_row(result) for result in results if result.get("bytes")]
    tables = [[PROCESSES, *map(process_row, children)], *([[PAIRS, *pairs]] if pairs else [])]
    return [f"  {line}" for table in tables for line in aligned(table, numbers(table[1:]))]


def process_row(child: Child) -> tuple[str, ...]:
    tokens = child.facts.get("kv_tokens")
    pid = child.running.process.pid if child.running else None
    kv = NOTHING if tokens is None else f"{tokens:,}"
    cells = str(child.facts.get("kv_cache_dtype", NOTHING))
    cores = {core for member in child.plan.members for core in member.cores}
    return child.name, child.plan.place, spell(cores), kv, cells, str(pid or NOTHING)


def pair_row(result: dict[str, Any]) -> tuple[str, ...]:
    """Return the row of a pair's first transfer. Memory that was never touched is slower than it will be later."""
    moved_bytes, seconds = result["bytes"], result.get("seconds")
    rate = f"{moved_bytes / seconds / 1e9:.2f}" if seconds else NOTHING
    return result["route"], f"{moved_bytes / 1e6:.1f} MB", rate


def numbers(rows: Sequence[tuple[str, ...]]) -> list[bool]:
    """Return which columns have numbers only."""
    return [all(cell == NOTHING or cell[:1].isdigit() for cell in column) for column in zip(*rows, strict=True)]


def example(url: str, model: str, asks_for_keys: bool = False) -> str:
    """Return a command to try at a terminal."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
    key = ' -H "authorization: Bearer $KEY"' if asks_for_keys else ""
    return f"curl {url}/v1/chat/completions{key} -H 'content-type: application/json' -d '{shell_quoted(body)}'"


def shell_quoted(text: str) -> str:
    """Quote the text for use between single quotes."""
    return text.replace("'", "'\\''")


class Announcement:
    """The announcement. `made` is true, for good, once the launch was announced. The self-test `began` at that time and
    may take `limit` seconds."""

    def __init__(
        self, topology: Topology, console: Console, self_test: SelfTestMonitor, began: float, limit: float
    ) -> None:
        self.topology, self.console, self.self_test = topology, console, self_test
        self.began, self.limit = began, limit
        self.made = False

    def advance(self, children: Sequence[Child], now: float) -> LaunchError | None:
        """Start the self-test, or announce the launch. Return the error that ends the launch, if there is one."""
        proxies = [child for child in children if child.plan.is_proxy]
        whole = all(child.state in (ChildState.READY, ChildState.ASLEEP) for child in children)
        if self.made or whole:
            self.self_test.ask(proxies, now)
        else:
            self.self_test.forget(proxies)
        if self.made or not whole:
            return None
        results = self.self_test.results(proxies)
        if complaint := self.self_test.complaint(results, now, self.limit):
            return LaunchError(complaint)
        if results is not None:
            self.announce(children, results, now)
        return None

    def announce(self, children: Sequence[Child], results: Sequence[dict[str, Any]], now: float) -> None:
        self.made = True
        self.console.settle()
        topology = self.topology
        for line in overview(children, results):
            self.console.line(line)
        where = f"ready on {topology.url}" if topology.url else f"ready, joined {', '.join(topology.controls)}"
        self.console.line(f"{where} after {now - self.began:.1f} s")
        if topology.url and self.console.terminal:
            self.console.line(f"live page: {topology.url}/admin/ui")
            self.console.line(example(topology.url, topology.served, topology.asks_for_keys))
