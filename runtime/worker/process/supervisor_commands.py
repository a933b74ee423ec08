# SPDX-License-Identifier: Apache-2.0
"""Commands of the supervisor to a worker."""

import logging
from collections.abc import Callable, Mapping

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.wire.links.sockets import Poller
from pontil.runtime.worker.process.role_change import AssignedRole


class SupervisorCommands:
    """Reads and carries out commands. `poller` wakes the worker when one arrives, as long as the supervisor is
    there. `trials` are faults for so many seconds, by the kind of the command for each."""

    def __init__(
        self, pipe: CommandPipe, poller: Poller, assigned_role: AssignedRole,
        trials: Mapping[str, Callable[[float], None]],
    ) -> None:  # fmt: skip
        self.pipe, self.poller, self.assigned_role, self.trials = pipe, poller, assigned_role, trials
        poller.watch(pipe.descriptor)

    def obey(self, now: float) -> None:
        """Carry out the commands that have arrived."""
        if self.pipe.closed or not self.poller.may_show(self.pipe.descriptor):
            return
        for command in self.pipe.take():
            if command.get("kind") == "duty":
                self.assigned_role.take(command["order"], command["role"], command["drain"], now)
            elif command.get("kind") == "log_level":
                logging.getLogger().setLevel(command["level"].upper())
            elif trial := self.trials.get(command.get("kind", "")):
                trial(command["seconds"])
        if self.pipe.closed:
            self.poller.unwatch(self.pipe.descriptor)
