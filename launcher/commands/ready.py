# SPDX-License-Identifier: Apache-2.0
"""The command `ready`: for a service manager or container engine that asks whether a launch on this host serves."""

from pathlib import Path

import click

from pontil.launcher.control.control_client import RunningLaunch, find_launch
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.options.options import read_environment

READY = "ready"
# The role of the process that finds the model, before the others start.
SEARCH = "prepare"


@click.command(short_help="Tell by the exit code whether a launch here is ready.")
@click.option("--pid", type=int, metavar="PID", help="The launch with this process id, where several run.")
@click.option("--run-directory", type=click.Path(path_type=Path), metavar="DIR", help="That with this run directory.")
def ready(pid: int | None, run_directory: Path | None) -> None:
    """Exit with 0 if all processes of the launch on this host are ready, else with 1 and what is missing.

    It asks the launch's supervisor, so it also tells of workers that joined a proxy elsewhere. Whether requests can be
    served at all is what /ready of the proxy tells.
    """
    click.echo(said(find_launch(read_environment().run_base, run_directory, pid)))


def said(launch: RunningLaunch) -> str:
    """Return a sentence about a launch that is ready. Raises LaunchError for any other."""
    processes = [process for process in launch.facts.get("processes", []) if process["role"] != SEARCH]
    missing = [f"{process['name']} is {process['state']}" for process in processes if process["state"] != READY]
    if missing or not processes:
        raise LaunchError(f"Not ready yet: {', '.join(missing) or 'the model is being looked for'}.")
    return f"ready: {', '.join(process['name'] for process in processes)}"
