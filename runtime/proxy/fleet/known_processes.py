# SPDX-License-Identifier: Apache-2.0
"""The supervisor's process table, as the proxy keeps and shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.wire.messages import Hello

# Ended processes, and removed workers, of which something is kept.
REMEMBERED = 256
# The state of a worker that is started when its model is asked for.
ASLEEP = "ASLEEP"
DEAD_STATES = ("EXITED", "KILLED", "BACKOFF", "GIVEN_UP", ASLEEP)


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process of the supervisor's table, or a refused worker, with the `reason`.

    `about` holds the table's other fields: they are shown, and nothing here depends on them. `ended_pids` are those of
    earlier processes of the child.
    """

    name: str
    role: str
    pid: int | None
    state: str
    device: str
    reason: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    ended_pids: tuple[int, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ProcessRow":
        about = {name: value for name, value in values.items() if name not in cls.__slots__}
        if "ranks" in about:
            about["ranks"] = [{**rank, "state": state_name(rank["state"])} for rank in about["ranks"]]
        state, reason = state_name(values["state"]), values.get("reason")
        ended_pids = tuple(values.get("ended_pids", ()))
        return cls(values["name"], values["role"], values["pid"], state, values["device"], reason, about, ended_pids)

    @property
    def dead(self) -> bool:
        return self.state in DEAD_STATES


class KnownProcesses:
    """The newest table's `rows`, and the names and pids of processes that `ended`, the last ones last, with the worker
    that said Hello as such a process."""

    def __init__(self) -> None:
        self.rows: tuple[ProcessRow, ...] = ()
        self.ended: dict[tuple[str, int], str | None] = {}

    def take(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take a new table, and remember the last processes that one has shown as ended, or no more."""
        before, self.rows = self.rows, tuple(map(ProcessRow.of, rows))
        live_rows = {(row.name, row.pid) for row in self.rows if not row.dead}
        ended_rows = [
            (row.name, row.pid) for row in before if row.pid is not None and (row.name, row.pid) not in live_rows
        ]
        ended_rows += [(row.name, pid) for row in self.rows for pid in row.ended_pids]
        for process in ended_rows:
            self.ended[process] = self.ended.pop(process, None)
        for name, pid in live_rows:
            if pid is not None:
                self.ended.pop((name, pid), None)
        while len(self.ended) > REMEMBERED:
            del self.ended[next(iter(self.ended))]

    def is_late(self, message: Hello) -> bool:
        """Return whether the process that said this has ended, as a table has shown by now. One that lives, later or on
        another host, may have the same name and pid: it says Hello again, and is not late then."""
        key = message.name, message.pid
        if self.ended.get(key, message.sender) == message.sender:
            self.ended.pop(key, None)
            return False
        self.ended[key] = message.sender
        return True


def state_name(state: object) -> str:
    """Return a state of the supervisor's table as it is shown."""
    return str(state).upper().replace(" ", "_")
