# SPDX-License-Identifier: Apache-2.0
"""Rows of the supervisor's process table, as the proxy keeps and shows them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEAD_STATES = ("EXITED", "KILLED", "BACKOFF", "GIVEN_UP")


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
        ended = tuple(values.get("ended_pids", ()))
        return cls(values["name"], values["role"], values["pid"], state, values["device"], reason, about, ended)

    @property
    def dead(self) -> bool:
        return self.state in DEAD_STATES


def state_name(told: object) -> str:
    """Return a state of the supervisor's table as it is shown."""
    return str(told).upper().replace(" ", "_")
