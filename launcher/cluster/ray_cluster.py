# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster as a launch uses it: one placement group, and one actor at a time in each of its bundles.

Ray is imported when a launch asks for it: it is an extra, and slow to load.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pontil.launcher.cluster import worker_actor
from pontil.launcher.cluster.cluster_plan import ClusterNode, PlacedWorker
from pontil.launcher.cluster.slots import ActorEnded, ActorPlaced
from pontil.launcher.foundation.errors import LaunchError, OptionError

# Calls of an actor at the same time: `run`, which lasts, and another one.
CONCURRENCY = 2


def import_ray() -> Any:
    """Return the library. Raises OptionError if it is not installed."""
    try:
        import ray
    except ImportError:
        raise OptionError(
            "--on ray needs Ray, which is not installed here: install pontil's extra `ray`, on this host and on each "
            "node."
        ) from None
    return ray


class RayCluster:
    """A connection to a cluster. `events` are taken by `take`; a byte on the pipe says that there are some."""

    def __init__(self, ray: Any, address: str | None) -> None:
        """Connect. Raises LaunchError if there is no cluster."""
        self.ray = ray
        self.events: deque[ActorPlaced | ActorEnded] = deque()
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        os.set_blocking(self.writing, False)
        self.group: Any = None
        self.actors: dict[int, Any] = {}
        self.runs: dict[int, Any] = {}
        try:
            ray.init(address=address or "auto", logging_level="warning", log_to_driver=True)
        except (ConnectionError, ValueError, RuntimeError) as error:
            first = str(error).strip().partition("\n")[0]
            raise LaunchError(
                f"No Ray cluster answers at {address or 'this host'} ({first}): start one with `ray start --head`, or "
                "name its head with --ray-address."
            ) from None

    @property
    def address(self) -> str:
        """The address of this host as the cluster's nodes know it."""
        return str(self.ray.util.get_node_ip_address())

    def fileno(self) -> int:
        return self.reading

    def reserve(self, workers: Sequence[PlacedWorker]) -> None:
        """Ask for a bundle for each worker, spread over nodes as far as possible. Ray places the bundle of a lost node
        anew."""
        self.group = self.ray.util.placement_group([worker.bundle for worker in workers], strategy="SPREAD")

    def start(self, slot: int, attempt: int, worker: PlacedWorker) -> None:
        """Start an actor in a bundle, as soon as that has a node. `ActorPlaced` or `ActorEnded` follows."""
        # Its class goes to nodes by value: they cannot import it before it has bound the checkout.
        self.ray.cloudpickle.register_pickle_by_value(worker_actor)
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self.group, placement_group_bundle_index=slot
        )
        actor_class = self.ray.remote(worker_actor.WorkerActor).options(
            num_cpus=worker.bundle["CPU"],
            num_gpus=worker.bundle.get("GPU", 0.0),
            max_restarts=0,
            max_concurrency=CONCURRENCY,
            scheduling_strategy=strategy,
        )
        self.actors[slot] = actor_class.remote(checkout_folder())
        self.watch(
            self.actors[slot].look.remote(),
            lambda node: ActorPlaced(slot, attempt, ClusterNode(*node)),
            lambda lost: ActorEnded(slot, attempt, None, [lost]),
        )

    def run(self, slot: int, attempt: int, words: Sequence[str], keys: str | None) -> None:
        """Run the launch of a slot's worker in its actor. `ActorEnded` follows."""
        self.runs[slot] = self.actors[slot].run.remote(list(words), keys)
        self.watch(
            self.runs[slot],
            lambda outcome: ActorEnded(slot, attempt, outcome[0], outcome[1]),
            lambda lost: ActorEnded(slot, attempt, None, [lost]),
        )

    def watch(
        self,
        reference: Any,
        event_of: Callable[[Any], "ActorPlaced | ActorEnded"],
        failure_of: Callable[[str], "ActorPlaced | ActorEnded"],
    ) -> None:
        """Make an event of the result of a call, or of its failure."""

        def note(future: Any) -> None:
            error = future.exception()
            self.events.append(event_of(future.result()) if error is None else failure_of(plain(error)))
            with suppress(OSError):
                os.write(self.writing, b"!")

        reference.future().add_done_callback(note)

    def take(self) -> list["ActorPlaced | ActorEnded"]:
        """Return the events since the last call, in order."""
        with suppress(BlockingIOError):
            os.read(self.reading, 4096)
        events = []
        while self.events:
            events.append(self.events.popleft())
        return events

    def discard(self, slot: int) -> None:
        """End a slot's actor; what it runs dies with it."""
        actor = self.actors.pop(slot, None)
        self.runs.pop(slot, None)
        if actor is not None:
            self.ray.kill(actor)

    def close(self, within: float) -> None:
        """Have all launches end, wait so many seconds for them, and leave nothing of this launch on the cluster."""
        stopping = [self.actors[slot].stop.remote() for slot in self.runs]
        if stopping:
            self.ray.wait([*self.runs.values()], num_returns=len(self.runs), timeout=within)
        for slot in list(self.actors):
            self.discard(slot)
        if self.group is not None:
            self.ray.util.remove_placement_group(self.group)
            self.group = None

    def shutdown(self) -> None:
        """Disconnect. Ray then ends whatever of this launch is left."""
        self.ray.shutdown()
        os.close(self.reading)
        # A late result of a call may still write to the other end.
        self.writing = -1

    def resources(self) -> str:
        """Return what the cluster has, in words."""
        totals = self.ray.cluster_resources()
        nodes = sum(bool(node["Alive"]) for node in self.ray.nodes())
        return f"{nodes} nodes with CPU {totals.get('CPU', 0):g} and GPU {totals.get('GPU', 0):g}"


def checkout_folder() -> str | None:
    """Return the folder of app.py in a checkout; None where pontil is installed."""
    folder = Path(worker_actor.__file__).resolve().parents[2]
    return str(folder) if (folder / "app.py").exists() else None


def plain(error: BaseException) -> str:
    """Return Ray's error on one line: the class, which says what was lost, and the end of its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}, {lines[-1]}" if lines else type(error).__name__
