# SPDX-License-Identifier: Apache-2.0
"""A launch whose workers are on a cluster: the proxy's launch here, a slot for each worker there, and one loop."""

import selectors
import signal
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pontil.launcher.cluster.child_launch import ChildLaunch
from pontil.launcher.cluster.cluster_plan import ClusterPlan, PlacedWorker
from pontil.launcher.cluster.slots import ActorEnded, ActorPlaced, Slot, SlotState
from pontil.launcher.foundation.errors import LaunchError, RefusedError
from pontil.launcher.logs.console import Console
from pontil.launcher.supervisor.restart_policy import RestartPolicy
from pontil.launcher.supervisor.signals import SignalPipe

# Longest time in seconds until the end of the proxy's launch is noticed when its signal is missed.
PATIENCE = 5.0
# Seconds that launches get to end by themselves before they die with their actors, and the proxy's after them.
END_WITHIN = 10.0


class WorkerCluster(Protocol):
    """A cluster as the loop sees it: `RayCluster`, or a scripted one in tests."""

    def fileno(self) -> int: ...
    def reserve(self, workers: Sequence[PlacedWorker]) -> None: ...
    def start(self, slot: int, attempt: int, worker: PlacedWorker) -> None: ...
    def run(self, slot: int, attempt: int, words: Sequence[str], keys: str | None) -> None: ...
    def take(self) -> "list[ActorPlaced | ActorEnded]": ...
    def discard(self, slot: int) -> None: ...
    def close(self, within: float) -> None: ...
    def resources(self) -> str: ...


class ClusterLaunch:
    """The loop of a launch on a cluster. `control` is where workers join its proxy; `keys` the text of a key file, or
    None on a network that is trusted; `start_proxy` starts the proxy's launch."""

    def __init__(
        self,
        plan: ClusterPlan,
        cluster: WorkerCluster,
        control: str,
        keys: str | None,
        console: Console,
        start_proxy: Callable[[], ChildLaunch],
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        options = plan.options
        self.plan, self.cluster, self.control, self.keys, self.console = plan, cluster, control, keys, console
        self.start_proxy, self.clock = start_proxy, clock
        self.policy = RestartPolicy(
            options.restart_attempts, options.restart_window, options.restart_delay, options.restart_max_delay
        )
        self.slots = [Slot(worker, clock()) for worker in plan.workers]
        self.ever_placed = False
        self.failure: LaunchError | None = None
        self.proxy: ChildLaunch | None = None

    def run(self) -> int:
        """Serve until the proxy's launch has ended, and return its exit code. Raises LaunchError if no worker is left
        or found a place."""
        with SignalPipe() as signals, selectors.DefaultSelector() as selector:
            selector.register(signals, selectors.EVENT_READ)
            selector.register(self.cluster, selectors.EVENT_READ)
            try:
                self.proxy = self.start_proxy()
                self.cluster.reserve(self.plan.workers)
                while self.failure is None and self.proxy.ended is None:
                    selector.select(self.patience(self.clock()))
                    self.obey(signals.take())
                    self.advance(self.clock())
            finally:
                code = self.end()
        if self.failure is not None:
            raise self.failure
        return code

    def obey(self, numbers: Sequence[int]) -> None:
        """Pass signals on to the proxy's launch, which drains or ends as it would alone; workers end after it."""
        for number in numbers:
            if number != signal.SIGCHLD and self.proxy is not None:
                self.proxy.signal(number)

    def patience(self, now: float) -> float:
        waits = [slot.due - now for slot in self.slots if slot.state is SlotState.WAITING]
        return max(0.0, min([PATIENCE, *waits]))

    def advance(self, now: float) -> None:
        """Take what happened on the cluster, and start what is due."""
        for event in self.cluster.take():
            self.hear(event, now)
        for index, slot in enumerate(self.slots):
            if slot.is_due(now):
                slot.place(now)
                self.cluster.start(index, slot.attempt, slot.worker)
        self.failure = self.failure or self.complaint(now)

    def hear(self, event: ActorPlaced | ActorEnded, now: float) -> None:
        slot = self.slots[event.slot]
        if not slot.is_current(event):
            return
        if isinstance(event, ActorEnded):
            self.answer(slot, event, now)
            return
        self.ever_placed = True
        devices = slot.settle(event.node, self.slots)
        self.console.line(f"{slot.worker.name} starts on {event.node.address}, on {devices}")
        self.cluster.run(
            event.slot, slot.attempt, self.plan.worker_words(slot.worker, devices, self.control), self.keys
        )

    def answer(self, slot: Slot, event: ActorEnded, now: float) -> None:
        """Discard an actor that has ended, and have the next one started, or give the worker up."""
        self.cluster.discard(event.slot)
        delay = slot.end(event, self.policy, now)
        follows = " and is given up" if delay is None else f"; another actor starts in {delay:.1f} s"
        self.console.line(f"{slot.worker.name} {event.words}{follows}")

    def complaint(self, now: float) -> LaunchError | None:
        """Return why the launch cannot go on, if it cannot."""
        limit = self.plan.options.start_timeout
        lost = [slot for slot in self.slots if slot.state is SlotState.GIVEN_UP and slot.last is not None]
        if len(lost) == len(self.slots):
            last = lost[-1]
            assert last.last is not None
            kind = RefusedError if last.last.code == RefusedError.exit_code else LaunchError
            return kind(f"Every worker is given up, and nobody can be served: {last.worker.name} {last.last.words}")
        if not self.ever_placed and all(
            slot.state is SlotState.PLACING and now - slot.began > limit for slot in self.slots
        ):
            needs = "; ".join(slot.worker.describe() for slot in self.slots)
            return LaunchError(
                f"Ray found no place for the workers within {limit:g} s: they need {needs}, and the cluster has "
                f"{self.cluster.resources()}. Add nodes, or ask for less."
            )
        return None

    def end(self) -> int:
        """End the workers' launches and the proxy's, and give the group back."""
        try:
            self.cluster.close(END_WITHIN)
        finally:
            if self.proxy is not None and self.proxy.ended is None:
                self.proxy.signal(signal.SIGINT)
        return 1 if self.proxy is None else self.proxy.wait()
