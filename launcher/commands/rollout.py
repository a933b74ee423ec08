# SPDX-License-Identifier: Apache-2.0
"""The commands that change a running launch without interrupting its clients: they ask its supervisor."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pontil.launcher.commands.launch_choice import LaunchChoice, chooses_a_launch
from pontil.launcher.control.control_client import RunningLaunch, ask, no_verdict
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.keys.api_key import ADMIN, bearer, key_flag
from pontil.launcher.options.options import read_environment
from pontil.launcher.options.worker_roles import GENERATING_ROLES, LISTED_ROLES
from pontil.launcher.receipts.gate import RolloutGate, open_gate

DRAIN = click.option(
    "--drain-timeout",
    type=click.FloatRange(0, 3600),
    metavar="SECONDS",
    help="What requests get to end where they are, before others go on with them [default: the launch's].",
)
FORCE = click.option("--force", is_flag=True, help="Also where nobody else would serve meanwhile.")


GATE_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class GateOptions:
    """The record with which workers are tried before they serve, if there is one: where, with which key, for so long
    each."""

    file: Path | None = None
    seconds: float = GATE_TIMEOUT
    url: str | None = None
    key: Path | None = None

    def open(self, launch: RunningLaunch) -> RolloutGate | None:
        """Raises OptionError."""
        if self.file is None:
            return None
        key = bearer(self.key, ADMIN, read_environment().variables)
        return open_gate(self.file, self.url or launch.facts.get("url"), key, self.seconds, click.echo)


def gates(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of a gate to a command that changes a launch."""

    @click.option(
        "--gate",
        "file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Replay this record at each worker before it serves; one that answers otherwise ends the change.",
    )
    @click.option(
        "--gate-timeout",
        "seconds",
        type=click.FloatRange(1, 3600),
        default=GATE_TIMEOUT,
        show_default=True,
        metavar="SECONDS",
        help="The longest that it may take, for each worker.",
    )
    @click.option("--url", help="Address of the server that the workers belong to [default: the launch's].")
    @key_flag(ADMIN)
    @functools.wraps(command)
    def gated(file: Path | None, seconds: float, url: str | None, key: Path | None, **given: Any) -> int:
        return command(gate=GateOptions(file, seconds, url, key), **given)

    return gated


def changes_a_launch(command: Callable[..., dict[str, Any]]) -> Callable[..., int]:
    """Wrap a command that returns a request: add the options that choose a launch, and send the request to its
    supervisor."""

    @chooses_a_launch
    @functools.wraps(command)
    def asked(choice: LaunchChoice, gate: GateOptions | None = None, **given: Any) -> int:
        request = command(**given)
        launch = choice.find(read_environment().run_base)
        opened = None if gate is None else gate.open(launch)
        if opened is not None:
            request["gate"] = opened.seconds
        try:
            judge = no_verdict if opened is None else opened.judge
            reply = ask(launch.directory, request, click.echo, judge=judge)
        except KeyboardInterrupt:
            click.echo("The launch goes on with it; its log tells how it ends.", err=True)
            raise
        if reply.code:
            raise OptionError(reply.text) if reply.code == OptionError.exit_code else LaunchError(reply.text)
        click.echo(reply.text)
        return 0

    return asked


@click.command(short_help="Take work from a worker, without ending it.")
@click.argument("names", nargs=-1, required=True, metavar="WORKER...")
@DRAIN
@FORCE
@changes_a_launch
def drain(names: tuple[str, ...], drain_timeout: float | None, force: bool) -> dict[str, Any]:
    """Give a WORKER such as decode:0 no more work, and let its requests finish.

    Requests that still run after --drain-timeout go on at another worker with exactly the tokens they would have had.
    The worker then stays loaded and idle, also after a restart of its process; `undrain` brings it back at once, and
    `restart` as a new process.
    """
    return {"command": "drain", "names": list(names), "drain_timeout": drain_timeout, "force": force}


@click.command(short_help="Bring a drained worker back.")
@click.argument("names", nargs=-1, required=True, metavar="WORKER...")
@gates
@changes_a_launch
def undrain(names: tuple[str, ...]) -> dict[str, Any]:
    """Give a drained WORKER work again, with --gate only if it answers recorded requests as before."""
    return {"command": "undrain", "names": list(names)}


@click.command(short_help="Drain workers and start them again, one at a time.")
@click.argument("names", nargs=-1, metavar="WORKER...")
@click.option("--all", "everyone", is_flag=True, help="Every worker; those that are drained stay so.")
@click.option("--proxies", is_flag=True, help="The proxies; streams that can be continued go on at another one.")
@DRAIN
@FORCE
@gates
@changes_a_launch
def restart(
    names: tuple[str, ...], everyone: bool, proxies: bool, drain_timeout: float | None, force: bool
) -> dict[str, Any]:
    """Replace a WORKER's process by a new one, or every worker's with --all: one at a time, and only while all others
    serve. Drains each first, as `drain` does. A worker that was drained or given up serves again.
    """
    if everyone + proxies + bool(names) != 1:
        raise click.UsageError("Name workers such as decode:0, or say --all, or --proxies.")
    if proxies:
        return {"command": "restart", "proxies": True, "drain_timeout": drain_timeout, "force": force}
    request = {"command": "restart", "drain_timeout": drain_timeout, "force": force}
    return request | ({"all": True} if everyone else {"names": list(names)})


def role_counts(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add one option for each role: the wanted number of workers."""
    for role in reversed(LISTED_ROLES):
        meaning = f"How many {role} workers there shall be."
        command = click.option(f"--{role}", type=click.IntRange(0, 1024), metavar="COUNT", help=meaning)(command)
    return command


@click.command(short_help="Change how many workers there are.")
@role_counts
@click.option(
    "--node",
    "stages",
    multiple=True,
    metavar="STAGE=COUNT",
    help="How many workers a stage, or a further model, shall have, like code2wav=2 or talker.decode=1.",
)
@DRAIN
@FORCE
@gates
@changes_a_launch
def scale(stages: tuple[str, ...], drain_timeout: float | None, force: bool, **counts: int | None) -> dict[str, Any]:
    """Start or end workers until each given role has its number. New workers are like those that run and get free cores
    or a free GPU; those with the highest numbers are ended first, drained as `drain` does."""
    targets = {role: count for role, count in counts.items() if count is not None} | dict(map(stage_count, stages))
    if not targets:
        raise click.UsageError("Say how many workers there shall be, such as --decode 2.")
    return {"command": "scale", "counts": targets, "drain_timeout": drain_timeout, "force": force}


def stage_count(text: str) -> tuple[str, int]:
    stage, _, count = text.partition("=")
    if not stage or not count.isascii() or not count.isdigit() or len(count) > 4:
        raise click.UsageError(f"--node takes a stage and a number, like code2wav=2, not {text!r}.")
    return stage, int(count)


@click.command(short_help="Have a worker do another part of the work.")
@click.argument("name", metavar="WORKER")
@click.argument("wanted", type=click.Choice(GENERATING_ROLES), metavar="ROLE")
@changes_a_launch
def role(name: str, wanted: str) -> dict[str, Any]:
    """Have WORKER, such as decode:0, work as ROLE from the next request on: prefill, decode or mixed.

    Its process, model, name, prefix cache and current requests stay. A drained worker takes requests again.
    """
    return {"command": "role", "names": [name], "role": wanted}


@click.command(short_help="Have a launch read its configuration again, as SIGHUP does.")
@changes_a_launch
def reload() -> dict[str, Any]:
    """Read the options again from their sources: flags and configuration file. The log level changes at once, in every
    process, and so do API keys and the admin key. Changes that need a new launch are listed.
    """
    return {"command": "reload"}
