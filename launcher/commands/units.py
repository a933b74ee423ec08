# SPDX-License-Identifier: Apache-2.0
"""The command `units`: systemd unit files for a launch."""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pontil.launcher.commands.launch import launch
from pontil.launcher.commands.unit_file import SECRETS, UnitFile
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.keys.client_keys import read_client_keys
from pontil.launcher.keys.key_file import read_key_file
from pontil.launcher.options.options import OPTIONS, flag_name, read_options
from pontil.launcher.plan.checks import check_exposure, check_join, check_lists, check_stages
from pontil.launcher.plan.graph_choice import graph_of
from pontil.launcher.plan.topology import control_endpoints

# Valid names of a template's instance.
INSTANCE = re.compile(r"[A-Za-z0-9:_.-]+", re.ASCII)
PATHS = ("models", "usage_log", "response_store", "placement", *SECRETS)
# Folders of which a unit has its own (PrivateTmp).
HIDDEN = ("/tmp/", "/var/tmp/")


@click.command(short_help="Write systemd unit files for a launch.", context_settings={"ignore_unknown_options": True})
@click.option(
    "--install-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Where to write them, for instance /etc/systemd/system.",
)
@click.option("--user", metavar="NAME", help="An account to run as (default: one that systemd makes for it).")
@click.option("--program", metavar="PATH", help="What starts pontil there (default: what runs now).")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def units(install_dir: Path, user: str | None, program: str | None, words: tuple[str, ...]) -> None:
    """Write the systemd unit of `launch WORDS` into DIR, and show how to start it.

    \b
      units --install-dir /etc/systemd/system -- --role mixed --port 8080

    For workers that join a proxy (--join) it is a template, started once for each device. Paths are made absolute; key
    files are copied for the service at its start and when it is reloaded, so that only root needs to read them.
    """
    unit = unit_of([program] if program else own_program(), words, user)
    instances = instances_of(unit)
    write(install_dir / unit.name, unit.text())
    click.echo(
        f"wrote {install_dir / unit.name}; to start it: systemctl daemon-reload && systemctl enable --now "
        f"{' '.join(instances)}"
    )
    for path in hidden(unit):
        click.echo(f"the unit has a /tmp and a /var/tmp of its own, and does not see {path}: move it", err=True)


def own_program() -> list[str]:
    """Return how this installation is started: by app.py in a checkout, else by the command beside the interpreter."""
    app = Path(__file__).resolve().parents[2] / "app.py"
    return [sys.executable, str(app)] if app.exists() else [sys.executable, "-m", "pontil.launcher"]


def unit_of(program: list[str], words: tuple[str, ...], user: str | None) -> UnitFile:
    """Build the unit from the words of a launch, read and checked as `launch` does. Raises OptionError and click's
    errors."""
    with launch.make_context("launch", list(words)) as context:
        params = dict(context.params)
    config = params.pop("config")
    if params.pop("dry_run"):
        raise OptionError("--dry-run starts nothing: leave it out of a unit.")
    params |= {name: os.path.abspath(params[name]) for name in PATHS if params[name] is not None}
    options = read_options(params, config)
    secrets = {name: os.path.abspath(path) for name in SECRETS if (path := getattr(options, name)) is not None}
    options = replace(options, **secrets)
    check_lists(options)
    check_join(options)
    check_stages(options, graph_of(options.model_name))
    for control in control_endpoints(options, Path("/run")):
        check_exposure(options, control)
    if options.keys:
        read_key_file(Path(options.keys))
    read_client_keys(options, {})
    unit = UnitFile(program, options, (), {name.replace("_", "-"): path for name, path in secrets.items()}, user)
    left_out = {*SECRETS, *([unit.device_option] if unit.is_template else [])}
    option_words = [word for option in OPTIONS if option.name not in left_out for word in spelled(option, params)]
    return replace(unit, words=[*(["--config", str(config.absolute())] if config else []), *option_words])


def hidden(unit: UnitFile) -> list[str]:
    """Return what the unit's command names in folders that it does not see."""
    return [word for word in (*unit.program, *unit.words) if word.startswith(HIDDEN)]


def spelled(option: Any, params: dict[str, Any]) -> list[str]:
    """Return the words that pass this option to a launch; none if it was not given."""
    value, name = params[option.name], flag_name(option)
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if option.name == "model":
        return [
            word for one in ([value] if isinstance(value, str) else value) for word in (f"--{name}", model_path(one))
        ]
    return [f"--{name}", value]


def model_path(value: str) -> str:
    """Make a model path absolute if it exists here; any other name stays and is looked up by name."""
    return os.path.abspath(value) if os.path.exists(value) else value


def instances_of(unit: UnitFile) -> list[str]:
    """Return the names to start: for a template one for each requested device."""
    if not unit.is_template:
        return [unit.name]
    devices = ["cpu"] if unit.asked is None else [str(item) for item in unit.asked]
    if len(set(devices)) < len(devices) or not all(map(INSTANCE.fullmatch, devices)):
        raise OptionError(
            f"Each worker is an instance of its own here, so --{unit.device_option} has to name single GPUs or ranges "
            "of cores, like cuda:0,cuda:1 or cpu:0-3,cpu:4-7."
        )
    return [unit.name.replace("@", f"@{device}") for device in devices]


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise LaunchError(f"{path} cannot be written: {error.strerror}.") from None
