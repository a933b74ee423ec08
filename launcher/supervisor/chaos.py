# SPDX-License-Identifier: Apache-2.0
"""The supervisor's view of chaos: whether its processes may be disturbed, which a room that may be left out does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pontil.launcher.control.control_socket import ControlConnection
from pontil.launcher.foundation.errors import OptionError
from pontil.runtime.foundation.entry_points import entry_point

NO_CHAOS = "This launch does not allow chaos: start one with --allow-chaos, and not one that serves others."
WARNING = "chaos is allowed (--allow-chaos): `pontil chaos` of this user may kill, stop and slow workers and proxies"

Take = Callable[[ControlConnection, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class ChaosTerms:
    """The facts by which a client plans: the silence after which a process is killed, the deaths after which it is
    given up, and the files that the launch writes to."""

    silence: float
    restart_attempts: int
    restart_window: float
    usage_log: str | None = None
    folders: tuple[str, ...] = ()


class ChaosCommands(Protocol):
    """The one that takes the command `chaos`, and passes on others."""

    def take(self, client: ControlConnection, request: dict[str, Any]) -> None: ...

    def advance(self, now: float) -> None:
        """Make the steps of disturbances that are due."""

    def waits(self, now: float) -> Sequence[float]:
        """Return the seconds until each disturbance's next step."""

    def close(self) -> None:
        """Undo everything, since the launch ends."""


class NoChaos:
    """The one of a launch that does not allow chaos."""

    def __init__(self, others: Take) -> None:
        self.others = others

    def take(self, client: ControlConnection, request: dict[str, Any]) -> None:
        if request.get("command") == "chaos":
            client.end(NO_CHAOS, OptionError.exit_code)
        else:
            self.others(client, request)

    def advance(self, now: float) -> None:
        """Do nothing: there are no disturbances."""

    def waits(self, now: float) -> Sequence[float]:
        return ()

    def close(self) -> None:
        """Do nothing: there are no disturbances."""


def open_chaos(supervisor: Any, terms: ChaosTerms | None, others: Take) -> ChaosCommands:
    if terms is None:
        return NoChaos(others)
    commands: ChaosCommands = entry_point("disturbances")(supervisor, terms, others)
    return commands
