# SPDX-License-Identifier: Apache-2.0
"""The command line: the command group, and how errors end it. Each command only reads its options and calls the code
that does the work."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Literal, NoReturn

import click

from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.foundation.version import VERSION
from pontil.runtime.foundation.entry_points import entry_point, missing

INTERRUPTED = 130
# The module of the launcher that each command is in, by the command's name; None: it is in a room that may be left out
# (runtime/foundation/entry_points.py).
MODULES: dict[str, str | None] = {
    "launch": "commands.launch",
    "config": "commands.config",
    "doctor": "doctor.command",
    "graph": "commands.graph",
    "chat": "commands.chat",
    "bench": None,
    "profile": None,
    "plan": None,
    "conformance": None,
    "chaos": None,
    "status": "commands.status",
    "ready": "commands.ready",
    "drain": "commands.rollout",
    "undrain": "commands.rollout",
    "restart": "commands.rollout",
    "scale": "commands.rollout",
    "role": "commands.rollout",
    "reload": "commands.rollout",
    "usage": "commands.usage",
    "audit": "commands.usage",
    "keys": "commands.keys",
    "pull": "models.pull",
    "weights": "models.weights",
    "verify": "receipts.command",
    "record": "receipts.record_command",
    "replay": "receipts.replay_command",
    "units": "commands.units",
}


class LazyCommands(MutableMapping[str, click.Command]):
    """The commands by name, each imported when it is asked for: a process loads only the one that it runs. Importing
    all of them is most of the start of a child, which needs none. Those that are left out of this installation are not
    listed; one of them that is asked for raises LaunchError."""

    def __init__(self, modules: Mapping[str, str | None]) -> None:
        self.modules = modules
        self.loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self.loaded:
            self.loaded[name] = load(name, self.modules[name])
        return self.loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self.loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self.loaded[name]

    def __iter__(self) -> Iterator[str]:
        here = (name for name, module in self.modules.items() if module is not None or missing(name) is None)
        return iter(dict.fromkeys([*here, *self.loaded]))

    def __len__(self) -> int:
        return len(list(iter(self)))


def load(name: str, module: str | None) -> click.Command:
    if module is not None:
        command: click.Command = getattr(import_module(f"pontil.launcher.{module}"), name)
        return command
    if (lack := missing(name)) is not None:
        raise LaunchError(f"{lack}.")
    command = entry_point(name)
    return command


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, commands=LazyCommands(MODULES)
)
@click.version_option(VERSION, message="%(version)s", help="Print the version.")
def cli() -> None:
    """pontil serves large language models, with prefill and decode in separate processes.

    `launch` starts everything on this machine; point any OpenAI client at the address it prints.
    """


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(VERSION)


@cli.command(hidden=True)
@click.argument("name")
@click.option("--parent", type=int, required=True)
@click.option("--config-fd", type=int, required=True)
@click.option("--report-fd", type=int, required=True)
@click.option("--commands-fd", type=int)
def child(name: str, parent: int, config_fd: int, report_fd: int, commands_fd: int | None) -> NoReturn:
    """Run one process of a launch; `name` only shows in process lists."""
    from pontil.launcher.roles import Inheritance, run_child

    code = run_child(Inheritance(parent, config_fd, report_fd, commands_fd))
    # Everything is closed. Python would now free each object, which takes a second of CPU time where torch is loaded.
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


@cli.command(hidden=True)
@click.option("--parent", type=int, required=True)
@click.option("--requests-fd", type=int, required=True)
@click.option("--room")
def fork_server(parent: int, requests_fd: int, room: str | None) -> None:
    """Become each worker of a launch by a fork; `room` is overwritten with what lists of processes show then."""
    from pontil.launcher.roles import become_worker

    words = become_worker(parent, requests_fd)
    if words is not None:
        child.main(words, standalone_mode=False)


@cli.command(hidden=True)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--parent", type=int, required=True)
def examine(folder: Path, parent: int) -> None:
    """Report to the doctor what only a process that loads torch can find out: one JSON line for each part."""
    from pontil.launcher.doctor.child import examine_machine

    for part in examine_machine(parent, folder, sys.stdin):
        click.echo(json.dumps(part))


def main() -> None:
    """Run the command line. Every mistake of a user ends in one sentence and an exit code, never in a traceback."""
    try:
        sys.exit(cli.main(prog_name=program_name(), standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)


def program_name() -> Literal["pontil", "app.py"]:
    return "app.py" if Path(sys.argv[0]).name == "app.py" else "pontil"
