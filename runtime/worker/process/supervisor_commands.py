# SPDX-License-Identifier: Apache-2.0
"""Commands of the supervisor to a worker."""

import logging
from collections.abc import Callable

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.transfer.connector import SliceConnector
from pontil.runtime.transfer.cut_connector import CutConnector
from pontil.runtime.wire.links.sockets import Poller
from pontil.runtime.worker.process.role_change import AssignedRole


class SupervisorCommands:
    """Reads and carries out commands. `poller` wakes the worker when one arrives, as long as the supervisor is
    there. A worker of tokens has a `link`, its connector, and in trials a `stall`, which stops its messages."""

    def __init__(
        self, pipe: CommandPipe, poller: Poller, assigned_role: AssignedRole, link: SliceConnector | None = None,
        stall: Callable[[float], None] | None = None,
    ) -> None:  # fmt: skip
        self.pipe, self.poller, self.assigned_role = pipe, poller, assigned_role
        self.link, self.stall = link, stall
        poller.watch(pipe.descriptor)

    def obey(self, now: float) -> None:
        """Carry out the commands that have arrived."""
        if self.pipe.closed or not self.poller.may_show(self.pipe.descriptor):
            return
        for command in self.pipe.take():
            if command.get("kind") == "role":
                self.assigned_role.take(command["order"], command["role"], command["drain"], now)
            elif command.get("kind") == "log_level":
                logging.getLogger().setLevel(command["level"].upper())
            elif command.get("kind") == "cut" and isinstance(self.link, CutConnector):
                self.link.cut(command["seconds"])
            elif command.get("kind") == "stall" and self.stall is not None:
                self.stall(command["seconds"])
        if self.pipe.closed:
            self.poller.unwatch(self.pipe.descriptor)
