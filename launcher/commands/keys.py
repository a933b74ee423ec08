# SPDX-License-Identifier: Apache-2.0
"""The commands about keys: `keys new` and `keys api`."""

from pathlib import Path

import click

from pontil.launcher.keys.client_keys import new_line
from pontil.launcher.keys.key_file import make_key_file


@click.group(short_help="Make keys: of a system's hosts, and of its clients.")
def keys() -> None:
    """Make keys: those that protect a system across hosts, and those that clients send."""


@keys.command(short_help="Make a key file.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("pontil.keys"),
    show_default=True,
    metavar="FILE",
    help="Where to write it.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def new(out: Path, force: bool) -> None:
    """Make a key file, for `launch --keys FILE` on each host of a system.

    Copy it to each host over a connection you trust, for instance with scp -p, readable only by pontil's user.
    """
    make_key_file(out, force=force)
    click.echo(f"{out.absolute()}")


@keys.command(short_help="Make an API key.")
@click.argument("name", required=False)
@click.argument("settings", nargs=-1, metavar="[SETTING=VALUE]...")
def api(name: str | None, settings: tuple[str, ...]) -> None:
    """Print a new API key, as a line for the file of `launch --api-keys FILE`. NAME is what logs call its client.

    Settings say what it may do: share, class, requests, tokens, rate, token_rate, priority (docs/operate/access.md).
    """
    click.echo(new_line(name, settings))
