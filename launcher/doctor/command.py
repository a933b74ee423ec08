# SPDX-License-Identifier: Apache-2.0
"""The command `doctor`: problems of this machine that would hinder a launch, what they mean and how to mend them."""

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pontil.launcher.commands.launch import LaunchCommand, config_flag, launch_flags
from pontil.launcher.control.local_proxy import at_home
from pontil.launcher.doctor.finding import Finding
from pontil.launcher.options.options import read_environment, read_options

WIDTH, INDENT = 100, 25
COLOURS = {"fine": "green", "absent": "bright_black", "warning": "yellow", "broken": "red"}


@click.command(cls=LaunchCommand, short_help="Look for what would hinder a launch on this machine.")
@launch_flags
@config_flag
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def doctor(config: Path | None, as_json: bool, **given: Any) -> int:
    """Check this machine for problems that would hinder a launch (with the same options, if any are given): what was
    found, what it means and how to mend it. Exit code 1 when something is broken."""
    from pontil.launcher.doctor.checkup import check_up

    launch_environment = read_environment()
    options = read_options(given, config or launch_environment.config_file, launch_environment.variables)
    options = at_home(options, launch_environment.run_base)
    findings = []
    for finding in check_up(options, launch_environment):
        findings.append(finding)
        if not as_json:
            for line in lines(finding):
                click.echo(line)
    states = [finding.state for finding in findings]
    healthy = "broken" not in states
    if as_json:
        click.echo(json.dumps({"healthy": healthy, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        click.echo(summary(states.count("broken"), states.count("warning")))
    return 0 if healthy else 1


def lines(finding: Finding) -> Iterator[str]:
    """Yield state, subject and finding; below, the meaning and the remedy."""
    state = click.style(f"{finding.state:<8}", fg=COLOURS[finding.state], bold=finding.state == "broken")
    first, *further_lines = textwrap.wrap(finding.found, WIDTH - INDENT)
    yield f"{state} {finding.subject:<15} {first}"
    yield from (" " * INDENT + line for line in further_lines)
    for label, words in (("means", finding.meaning), ("mend", finding.mend)):
        yield from textwrap.wrap(words, WIDTH, initial_indent=f"{'':<9}{label:<16}", subsequent_indent=" " * INDENT)


def summary(broken: int, warnings: int) -> str:
    if broken:
        return f"{broken} broken, {warnings} to think about: a launch will not work here as it is"
    return "a launch can work here" + (f", with {warnings} to think about" if warnings else "")
