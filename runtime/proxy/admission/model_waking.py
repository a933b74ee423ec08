# SPDX-License-Identifier: Apache-2.0
"""Requests for models whose workers sleep: they wait at the door, and the supervisor is told what is asked for."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.fleet.known_processes import ASLEEP
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.shared_room import SharedRoom
from pontil.runtime.threads import is_set_within

# Requests that wait for one model at once, which callers share: more would wait longer than they may.
MOST_WAITING = 256
# Seconds of a start that was not seen yet.
USUAL_START = 5.0


class ModelWaking:
    """The models of one proxy whose workers come and go. `tell` passes on how many requests each had, how many are open
    and how many of these wait; without it models are always there. A request waits `patience` seconds at most."""

    def __init__(
        self, registry: Registry, requests: Mapping[str, Request], clock: Callable[[], float], patience: float
    ) -> None:
        self.registry, self.requests, self.clock, self.patience = registry, requests, clock, patience
        self.tell: Callable[[dict[str, list[int]]], None] | None = None
        self.admitted = Counter[str | None]()
        self.doors = {key: SharedRoom(MOST_WAITING) for key in registry.groups}
        self.told: dict[str, list[int]] = {}
        self.came = asyncio.Event()
        # The seconds that a model's workers took to start, as the supervisor has told.
        self.starts: dict[str | None, float] = {}
        self.slept = set[str | None]()

    async def awake(self, group: str | None, caller: str) -> None:
        """Wait for a worker of a model that sleeps, until it has told of its room. Raises Unavailable where it will not
        be there in time, or too much of this caller waits for it."""
        if self.is_there(group) or not self.may_wake(group):
            return
        deadline, door = self.clock() + self.patience, self.doors[group]
        if not door.take(caller, 1):
            raise self.too_late(group, f"{door.total} requests wait for it")
        self.report()
        try:
            while not self.is_there(group) and self.may_wake(group):
                if (left := deadline - self.clock()) <= 0:
                    raise self.too_late(group, f"it did not wake in {self.patience:g} s")
                came = self.came
                await is_set_within(came, left)
        finally:
            door.give_back(caller, 1)

    def is_there(self, group: str | None) -> bool:
        """Return whether a model has a worker that takes requests, and has told of its room."""
        return any(worker.contact.stated for worker in self.registry.of(group).available)

    def may_wake(self, group: str | None) -> bool:
        """Return whether a worker of the model may come: the supervisor has one, and has not given it up."""
        if self.tell is None:
            return False
        rows = [row for row in self.registry.processes.rows if row.role != "proxy"]
        return any(row.state != "GIVEN_UP" and self.registry.may_be_of(row, group) for row in rows)

    def sleeps(self, group: str | None) -> bool:
        """Return whether a model has no worker now, and gets one when it is asked for."""
        rows = [row for row in self.registry.processes.rows if self.registry.may_be_of(row, group)]
        return self.tell is not None and any(row.state == ASLEEP for row in rows)

    def is_proved(self, group: str | None) -> bool:
        """Return whether a model has answered before it slept: no test of its own need hold up those who woke it."""
        return group in self.slept and self.admitted[group] > 0

    def state(self, group: str | None) -> str:
        """Return the state of a model in a word."""
        if self.registry.of(group).available:
            return "awake"
        return "asleep" if self.sleeps(group) else "waking" if self.may_wake(group) else "unavailable"

    def too_late(self, group: str | None, why: str) -> Unavailable:
        return Unavailable(f"the model sleeps, and {why}: try again later", self.starts.get(group, USUAL_START))

    def admit(self, group: str | None, requests: int) -> None:
        """Count requests that were admitted."""
        self.admitted[group] += requests

    def on_change(self) -> None:
        """Have those look again that wait: workers have come or gone."""
        if self.tell is None:
            return
        for row in (row for row in self.registry.processes.rows if row.role != "proxy"):
            if row.state == ASLEEP:
                self.slept.add(row.about.get("model"))
            seconds = row.about.get("start_seconds")
            if isinstance(seconds, int | float):
                self.starts[row.about.get("model")] = float(seconds)
        came, self.came = self.came, asyncio.Event()
        came.set()

    def report(self) -> None:
        """Tell the supervisor what has changed."""
        if self.tell is None:
            return
        groups = [group.key for group in self.registry.answering]
        waiting = Counter({key: self.doors[key].total for key in groups})
        open_counts = waiting.copy()
        for request in self.requests.values():
            if not request.trial and request.work.group in groups:
                open_counts[request.work.group] += 1
                waiting[request.work.group] += not request.attempts.phases
        uses = {key or "": [self.admitted[key], open_counts[key], waiting[key]] for key in groups}
        if uses != self.told:
            self.told = uses
            self.tell(uses)
