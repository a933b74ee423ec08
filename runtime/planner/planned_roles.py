# SPDX-License-Identifier: Apache-2.0
"""The part of a supervisor by which workers of a plan get other roles: the launcher is in no plan."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pontil.runtime.planner.planned_worker import PlannedWorker
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.wire.simulated.event_loop import LoopProcess

# Seconds until a supervisor has read what a proxy asks for, and from one table to the next.
WAY, TABLES = 2e-3, 1.0


class PlannedRoles:
    """Carries out the role changes that the proxy of a process asks for. `made` has them, each with its time."""

    def __init__(
        self, process: LoopProcess, proxy: Proxy, workers: Sequence[PlannedWorker], tell_table: Callable[[], None]
    ) -> None:
        self.process, self.proxy, self.workers, self.tell_table = process, proxy, workers, tell_table
        self.world = process.world
        self.made = list[tuple[float, str, str]]()

    def begin(self) -> None:
        """Be heard of, from now on: a proxy asks nothing of a supervisor that is silent."""
        self.proxy.changes.ask = lambda number, request: self.world.after(WAY, self.carry_out, number, request)
        self.tell()

    def tell(self) -> None:
        self.tell_table()
        self.world.after(TABLES, self.tell)

    def carry_out(self, number: int, request: dict[str, Any]) -> None:
        (name,), role = request["names"], request["role"]
        worker = next((one for one in self.workers if one.name == name and one.alive), None)
        if worker is not None:
            self.made.append((self.world.time, name, role))
            take = worker.loop.assigned_role.take
            worker.job(self.world.time, partial(take, number, role, None, self.world.time))
            worker.notify()
        told = {"number": number, "end": "done", "code": int(worker is None)}
        self.world.after(WAY, self.process.call, self.proxy.changes.hear, told)
