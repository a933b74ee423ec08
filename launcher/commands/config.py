# SPDX-License-Identifier: Apache-2.0
"""The command `config`: every effective option of a launch, and its source."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from pontil.launcher.commands.launch import LaunchCommand, config_flag, launch_flags
from pontil.launcher.foundation.columns import aligned
from pontil.launcher.options.options import OPTIONS, read_environment, read_settings
from pontil.launcher.options.sources import Setting


@click.command(cls=LaunchCommand, short_help="Show the options of a launch, and where each was given.")
@launch_flags
@config_flag
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def config(config: Path | None, as_json: bool, **given: Any) -> None:
    """Show each option as `launch` would take it here with the same flags, and its source: default, file, environment
    or flag. `-` marks values that the machine or the model decides."""
    launch_environment = read_environment()
    settings = read_settings(given, config or launch_environment.config_file, launch_environment.variables)
    if as_json:
        click.echo(json.dumps([row(setting) for setting in settings], indent=2))
        return
    for line in table(settings):
        click.echo(line)


def row(setting: Setting) -> dict[str, Any]:
    """Return one option as a JSON object. A value without a JSON type, such as a list of devices, is written as its
    flag takes it."""
    value = spelled(setting.value) if isinstance(setting.value, tuple) else setting.value
    return {"name": setting.name, "value": value, "source": setting.source, "place": setting.place or None}


def table(settings: Sequence[Setting]) -> Iterator[str]:
    """Yield the options under the headings they were declared with."""
    sections = {option.name: option.metadata["section"] for option in OPTIONS}
    lines = zip(settings, aligned([*map(cells, settings)], (False, False, False)), strict=True)
    for section, group in groupby(lines, lambda line: sections[line[0].field]):
        yield f"{section}:"
        yield from (f"  {line}" for _, line in group)


def cells(setting: Setting) -> tuple[str, str, str]:
    return setting.name, spelled(setting.value), f"{setting.source} {setting.place}".rstrip()


def spelled(value: Any) -> str:
    """Return the value as a flag would be written."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return f"{value:.9g}" if isinstance(value, float) else str(value)
