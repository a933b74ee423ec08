# SPDX-License-Identifier: Apache-2.0
"""The command line: the command group, and how errors end it. Each command only reads its options and calls the code
that does the work."""

import json
import os
import sys
from pathlib import Path
from typing import Literal, NoReturn

import click

from pontil.launcher.bench.command import bench
from pontil.launcher.chaos.command import chaos
from pontil.launcher.commands.chat import chat
from pontil.launcher.commands.config import config
from pontil.launcher.commands.graph import graph
from pontil.launcher.commands.keys import keys
from pontil.launcher.commands.launch import launch
from pontil.launcher.commands.ready import ready
from pontil.launcher.commands.rollout import drain, reload, restart, role, scale, undrain
from pontil.launcher.commands.status import status
from pontil.launcher.commands.units import units
from pontil.launcher.commands.usage import audit, usage
from pontil.launcher.conformance.command import conformance
from pontil.launcher.doctor.command import doctor
from pontil.launcher.version import VERSION

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
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
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--parent", type=int, required=True)
def examine(folder: Path, parent: int) -> None:
    """Report to the doctor what only a process that loads torch can find out: one JSON line for each part."""
    from pontil.launcher.roles import examine_machine

    for part in examine_machine(parent, folder):
        click.echo(json.dumps(part))


CHANGES = (drain, undrain, restart, scale, role, reload)
for command in (
    launch, config, doctor, graph, chat, bench, conformance, chaos, status, ready, *CHANGES, usage, audit, keys, units,
):  # fmt: skip
    cli.add_command(command)


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
