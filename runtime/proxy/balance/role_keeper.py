# SPDX-License-Identifier: Apache-2.0
"""Roles that follow the load: the first proxy of a launch asks its supervisor for the changes."""

import logging
from collections.abc import Callable

from pontil.runtime.errors import PontilError
from pontil.runtime.proxy.balance.balancer import DECODE, PREFILL, RoleBalancer
from pontil.runtime.proxy.balance.fleet_load import FleetLoad
from pontil.runtime.proxy.fleet.operator_changes import OperatorChanges
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker

LOG = logging.getLogger("pontil.proxy")
OTHER = {PREFILL: DECODE, DECODE: PREFILL}


class RoleKeeper:
    """Has one worker at a time take the other role, as the load needs it. Only workers of this launch can be asked; one
    that drains, or another change under way, is left alone."""

    def __init__(self, load: FleetLoad, changes: OperatorChanges, clock: Callable[[], float]) -> None:
        self.load, self.changes, self.clock = load, changes, clock
        self.balancer = RoleBalancer()

    def look(self) -> None:
        """Ask for a change if one is due. Call it after each look at the load."""
        needs, now, counts = self.load.needs, self.clock(), self.load.counts()
        if needs is None or self.is_busy or not (counts[PREFILL] and counts[DECODE]):
            return
        role = self.balancer.decide(now, needs, counts[PREFILL], counts[DECODE])
        worker = None if role is None else self.chosen(OTHER[role])
        if role is None or worker is None:
            return
        pressures = needs.prefill_pressure(counts[PREFILL]), needs.decode_pressure(counts[DECODE])
        LOG.info(
            "%s is to work as %s: %d prefill workers have %.2f of what they can do, %d decode workers %.2f",
            worker.hello.name,
            role,
            counts[PREFILL],
            pressures[0],
            counts[DECODE],
            pressures[1],
        )
        # The next one waits, whatever comes of this one.
        self.balancer.made(now, role)
        try:
            self.changes.begin("role", worker.hello.name, role)
        except PontilError as error:
            LOG.info("%s keeps its role: %s", worker.hello.name, error)

    @property
    def is_busy(self) -> bool:
        """True while an operator's change, or the last one of this keeper, is under way."""
        self.changes.end_silent()
        return bool(self.changes.open)

    def chosen(self, role: str) -> RegisteredWorker | None:
        """Return the worker of a role that has least to do of it, of those that this launch can change."""
        own = {row.name for row in self.changes.registry.processes.rows}
        workers = [one for one in self.load.group.available if one.role == role and one.hello.name in own]
        return min(workers, key=work_left, default=None)


def work_left(worker: RegisteredWorker) -> tuple[int, int, int]:
    """Return what a worker has to do before it is free for another role, and what it would do again elsewhere."""
    return worker.taken + worker.others.taken, worker.uncomputed + worker.others.uncomputed, len(worker.prefixes)
