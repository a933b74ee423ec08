# SPDX-License-Identifier: Apache-2.0
"""The announcement of a launch: all children ready, then the self-test, then the line that says so."""

from collections.abc import Sequence
from typing import Any

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.logs.console import Console
from pontil.launcher.plan.topology import Topology
from pontil.launcher.supervisor.overview import example, overview
from pontil.launcher.supervisor.self_test import SelfTestMonitor


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
        whole = all(child.state is ChildState.READY for child in children)
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
