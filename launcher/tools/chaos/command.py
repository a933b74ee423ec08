# SPDX-License-Identifier: Apache-2.0
"""The command `chaos`: whether a running launch holds under faults."""

import json
import math
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pontil.launcher.commands.launch_choice import LaunchChoice, chooses_a_launch
from pontil.launcher.control.control_client import RunningLaunch, ask
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.keys.api_key import ADMIN, bearer, key_flag
from pontil.launcher.options.options import read_environment

# The rest is imported where it is used: no other command needs asyncio.
if TYPE_CHECKING:
    from pontil.launcher.tools.chaos.chaos_run import ChaosReport

ALL_FAULTS = ("kill", "stop", "slow", "cut", "stall", "fill", "greed")
MOST_MINUTES, MOST_STREAMS = 240, 256
# Seeds that are chosen here are short enough to type.
SEEDS = 100_000


def listed(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Return the faults of a list separated by commas, each once."""
    faults = tuple(dict.fromkeys(value.split(",")))
    if not set(faults) <= set(ALL_FAULTS):
        raise click.BadParameter(f"write some of {', '.join(ALL_FAULTS)}, separated by commas", ctx, param)
    return faults


def finite(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """Return a number of a range; nan is in every range."""
    if math.isnan(value):
        raise click.BadParameter("write a number", ctx, param)
    return value


@click.command(short_help="Prove that a launch holds while its processes die, stop and lose their links.")
@click.option(
    "--minutes",
    type=click.FloatRange(0, MOST_MINUTES, min_open=True),
    callback=finite,
    default=5.0,
    show_default=True,
    help="How long; each fault comes at least once in any case.",
)
@click.option("--faults", callback=listed, default=",".join(ALL_FAULTS), metavar="LIST", show_default=True)
@click.option("--streams", type=click.IntRange(1, MOST_STREAMS), default=8, show_default=True, help="Requests at once.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=lambda: secrets.randbelow(SEEDS),
    help="The plan of an earlier run again (default: another one each time).",
)
@click.option("--url", help="The server of the load (default: the launch's own).")
@click.option("--model", metavar="NAME", help="The model to ask for (default: the first that is served).")
@chooses_a_launch
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@key_flag(ADMIN)
@click.option(
    "--greedy-key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File whose first key greed sends: one of another client than the load's (default: no greed).",
)
def chaos(
    choice: LaunchChoice,
    url: str | None,
    model: str | None,
    as_json: bool,
    key: Path | None,
    greedy_key: Path | None,
    **trial: Any,
) -> int:
    """Disturb a running launch that was started with --allow-chaos, under a load, and say whether it held.

    Workers, and proxies where there are several, are killed, stopped and slowed down, KV links are cut, messages are
    held up, a small filesystem that the launch writes to is filled, and another client asks for more than there is.
    Every answer is compared with the same launch's undisturbed one, small requests must not wait for the other client,
    and afterwards usage, KV blocks, descriptors and the audit are checked. Nobody else should use the launch meanwhile.
    Exit code 1 means that it broke. Ctrl-C undoes everything.
    """
    import asyncio

    from pontil.launcher.foundation.server_client import first_model
    from pontil.launcher.tools.bench.extra import require
    from pontil.launcher.tools.chaos.chaos_run import ChaosRun, ChaosSettings

    require("aiohttp", "chaos sends its load")
    environment = read_environment()
    headers = bearer(key, ADMIN, environment.variables)
    greedy = {} if greedy_key is None else bearer(greedy_key, ADMIN, environment.variables)
    if greedy and greedy == headers:
        raise OptionError("--greedy-key has the key of the load: give that of another client.")
    launch = choice.find(environment.run_base)
    check_allowed(launch)
    full = url or launch.facts.get("url")
    if not full:
        raise LaunchError("This launch has no proxy to send a load to: name its address with --url.")
    full = (full if "://" in full else f"http://{full}").rstrip("/").removesuffix("/v1")
    settings = ChaosSettings(full, model or first_model(full, headers), key=headers, greedy_key=greedy, **trial)
    show = (lambda line: click.echo(line, err=True)) if as_json else click.echo
    report = asyncio.run(ChaosRun(launch, settings, show).run())
    if as_json:
        click.echo(json.dumps(report.json))
    else:
        for line in lines_of(report):
            click.echo(line)
    return 0 if report.held else 1


def check_allowed(launch: RunningLaunch) -> None:
    """Raise OptionError unless the launch allows chaos, LaunchError if it cannot be asked, before anything is sent to
    it."""
    reply = ask(launch.directory, {"command": "chaos"}, lambda text: None)
    if reply.code:
        raise OptionError(reply.text) if reply.code == OptionError.exit_code else LaunchError(reply.text)


def lines_of(report: "ChaosReport") -> list[str]:
    """Return the table of pauses, the checks and the verdict."""
    from pontil.launcher.tools.chaos.pause_table import table_lines

    lines = ["", *table_lines(report.pauses), ""]
    for check in report.checks:
        lines.append(f"{'held ' if check.held else 'BROKE'}  {check.name:<13}  {check.seen}")
        lines += [f"         {line}" for line in check.lines]
    return [*lines, "", f"{report.verdict}: {report.seconds:.0f} s, seed {report.seed}"]
