# SPDX-License-Identifier: Apache-2.0
"""Changes of workers that an operator asks the proxy for, which its supervisor carries out."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.fleet.registry import FRESH, Registry
from pontil.runtime.threads import is_set_within

ACTIONS = ("drain", "undrain", "role", "restart")
ROLES = ("prefill", "decode", "mixed")
# Changes that are kept to be shown, lines of each, and characters of a line.
KEPT, KEPT_LINES, KEPT_CHARACTERS = 8, 50, 300
# Changes that may wait for the supervisor's answer at once. It carries out one and refuses the others.
MOST_OPEN = 4
# Seconds without a sign of the supervisor, which gives one every 5 s while a change is under way.
SILENCE = 20.0

# Gives the supervisor a numbered request.
Ask = Callable[[int, dict[str, Any]], None]


@dataclass(slots=True)
class OperatorChange:
    """One change: `lines` are its progress, `outcome` its last words, None while it is under way."""

    number: int
    action: str
    worker: str
    role: str | None
    begun_at: float
    heard_at: float
    lines: list[str] = field(default_factory=list)
    outcome: str | None = None
    failed: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, outcome: str, *, failed: bool) -> None:
        if self.outcome is None:
            self.outcome, self.failed = outcome[:KEPT_CHARACTERS], failed
            self.over.set()

    def row(self, now: float) -> dict[str, Any]:
        return {
            "number": self.number,
            "action": self.action,
            "worker": self.worker,
            "role": self.role,
            "lines": list(self.lines),
            "outcome": self.outcome,
            "failed": self.failed,
            "seconds_ago": round(now - self.begun_at, 1),
        }


class OperatorChanges:
    """The changes asked for at one proxy, newest last. `ask` is None until a supervisor's line is there. `table_at` is
    the time of its last process table, which it sends every second; None without a supervisor."""

    def __init__(self, registry: Registry, clock: Callable[[], float]) -> None:
        self.registry, self.clock = registry, clock
        self.table_at: float | None = None
        self.ask: Ask | None = None
        self.changes: list[OperatorChange] = []
        self.count = 0

    def begin(self, action: str, worker: str, role: str | None = None) -> OperatorChange:
        """Ask the supervisor for a change of one of its workers, by its exact name. Raises RequestError for what can
        never be, Unavailable where nobody could carry it out now."""
        if action not in ACTIONS:
            raise RequestError(
                f"no worker can be told to {ascii(action)[1:-1]:.50}: say {', '.join(ACTIONS)}", status=404
            )
        if (role is not None) != (action == "role") or (role is not None and role not in ROLES):
            says = f"role must be one of {', '.join(ROLES)}" if action == "role" else f"{action} takes no role"
            raise RequestError(f"{says}: send it with the action role only", param="role")
        self.check_worker(worker)
        ask, age = self.ask, self.table_age
        if ask is None or age is None:
            raise Unavailable("this proxy has no launcher that could do it: use the command where the worker runs")
        if age > FRESH:
            raise Unavailable(f"the launcher has been silent for {age:.0f} s: see whether it is stopped, and try again")
        self.end_silent()
        if len(self.open) >= MOST_OPEN:
            raise Unavailable("other changes wait for the launcher already: try again when they are done")
        now = self.clock()
        self.count += 1
        change = OperatorChange(self.count, action, worker, role, now, now)
        self.keep(change)
        ask(change.number, {"command": action, "names": [worker]} | ({} if role is None else {"role": role}))
        return change

    def hear_table(self) -> None:
        """Take note that the supervisor sent a process table."""
        self.table_at = self.clock()

    @property
    def table_age(self) -> float | None:
        """Seconds since the supervisor's last process table; None without a supervisor."""
        return None if self.table_at is None else self.clock() - self.table_at

    @property
    def open(self) -> list[OperatorChange]:
        return [change for change in self.changes if change.outcome is None]

    def keep(self, change: OperatorChange) -> None:
        """Keep a new change in the place of the oldest that is over: one that is open is still heard of."""
        over = [old_change for old_change in self.changes if old_change.outcome is not None]
        dropped_changes = over[: max(0, len(self.changes) + 1 - KEPT)]
        self.changes = [*(old_change for old_change in self.changes if old_change not in dropped_changes), change]

    def end_silent(self) -> None:
        """End the changes whose supervisor is silent for too long; nobody else does if their clients have left."""
        for change in self.open:
            if self.clock() - change.heard_at >= SILENCE:
                change.end(f"the launcher has not answered for {SILENCE:g} s: its log tells how this ends", failed=True)

    def check_worker(self, worker: str) -> None:
        """Raise RequestError for a name that is none of the supervisor's workers."""
        rows = {row.name: row for row in self.registry.processes.rows}
        if worker in rows and rows[worker].role != "proxy":
            return
        if worker in rows:
            raise RequestError(f"{worker} is a proxy: use `pontil restart --proxies` where it runs", status=409)
        if any(member.hello.name == worker for member in self.registry.workers.values()):
            says = "joined from another launch: use the command there"
            raise RequestError(f"{ascii(worker)[1:-1]:.100} {says}", status=409)
        known_names = ", ".join(name for name, row in rows.items() if row.role != "proxy") or "none"
        raise RequestError(f"there is no worker {ascii(worker):.100}: this launch has {known_names:.500}", status=404)

    def hear(self, told: Mapping[str, Any]) -> None:
        """Take a message of the supervisor about a change: a line to `say`, its `end` with an exit code, or a sign that
        it goes on."""
        change = next((change for change in self.changes if change.number == told.get("number")), None)
        if change is None:
            return
        change.heard_at = self.clock()
        if "say" in told and len(change.lines) < KEPT_LINES:
            change.lines.append(str(told["say"])[:KEPT_CHARACTERS])
        if "end" in told:
            change.end(str(told["end"]), failed=bool(told.get("code")))

    async def outcome(self, change: OperatorChange) -> OperatorChange:
        """Wait until a change is over, or its supervisor is silent for too long."""
        while not change.over.is_set():
            timeout = change.heard_at + SILENCE - self.clock()
            if not await is_set_within(change.over, max(0.0, timeout)):
                self.end_silent()
        return change

    def rows(self) -> list[dict[str, Any]]:
        """Return the changes, newest first, as JSON values."""
        self.end_silent()
        now = self.clock()
        return [change.row(now) for change in reversed(self.changes)]
