# SPDX-License-Identifier: Apache-2.0
"""The actor that runs the launch of one worker on the node that Ray chose for it.

Ray sends this module's class by value, since a node knows pontil only by the path of the checkout; so it imports pontil
when it is called. The path is that of the launch, the same on every node, or None where pontil is installed.
"""

import signal
import sys
from typing import Any


class WorkerActor:
    """One worker's launch. `run` returns when that has ended, in a thread of its own; the others are answered
    meanwhile. The launch dies with the actor's process."""

    def __init__(self, checkout: str | None) -> None:
        if checkout is not None and "pontil" not in sys.modules:
            sys.path.insert(0, checkout)
            import app  # noqa: F401  binds the checkout as the package
        self.launch: Any = None
        self.stopped = False

    def look(self) -> tuple[str, str, tuple[int, ...]]:
        """Return Ray's name and the address of this node, and the cores that may be used here."""
        import ray

        from pontil.launcher.host.devices import find_machine

        context = ray.get_runtime_context()
        return context.get_node_id(), ray.util.get_node_ip_address(), find_machine("").affordable

    def run(self, words: list[str], keys: str | None) -> tuple[int, list[str]]:
        """Run the launch; return its exit code and its last lines. `keys` come as an argument of a method, which Ray
        keeps in no table, unlike those of a constructor."""
        from pontil.launcher.cluster.child_launch import ChildLaunch
        from pontil.launcher.options.options import read_environment

        self.launch = ChildLaunch(words, keys, read_environment().variables, echo=sys.stderr)
        if self.stopped:
            self.launch.signal(signal.SIGINT)
        return self.launch.wait(), list(self.launch.lines)

    def stop(self) -> None:
        """Have the launch end at once; `run` then returns."""
        self.stopped = True
        if self.launch is not None:
            self.launch.signal(signal.SIGINT)
