# SPDX-License-Identifier: Apache-2.0
"""The flags by which a command finds the running launch that it is about."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pontil.launcher.control.control_client import RunningLaunch, find_launch


@dataclass(frozen=True, slots=True)
class LaunchChoice:
    """The launch with this process id, on this port or with this run directory; without any, the only one."""

    pid: int | None
    port: int | None
    run_directory: Path | None

    def find(self, run_base: Path) -> RunningLaunch:
        """Raises LaunchError or OptionError as `find_launch` does."""
        return find_launch(run_base, self.run_directory, self.pid, self.port)


def chooses_a_launch(command: Callable[..., int]) -> Callable[..., int]:
    """Add the flags to a command, which gets them as its `choice`."""

    @click.option("--pid", type=int, metavar="PID", help="The launch with this process id, where several run.")
    @click.option("--port", type=int, metavar="PORT", help="The launch that serves this port.")
    @click.option(
        "--run-directory", type=click.Path(path_type=Path), metavar="DIR", help="The launch with this run directory."
    )
    @functools.wraps(command)
    def with_choice(pid: int | None, port: int | None, run_directory: Path | None, **flags: Any) -> int:
        return command(choice=LaunchChoice(pid, port, run_directory), **flags)

    return with_choice
