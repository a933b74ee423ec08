# SPDX-License-Identifier: Apache-2.0
"""The supervisor's side of the self-test: when it asks a proxy, and what the answer means for the launch."""

from collections.abc import Sequence
from typing import Any

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState


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
