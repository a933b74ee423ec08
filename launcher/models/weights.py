# SPDX-License-Identifier: Apache-2.0
"""The command `weights`: the files of packed weights of this host."""

import json
import time
from typing import Any

import click

from pontil.launcher.commands.usage import table
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.options.options import read_environment

NONE = "no packed weights"


@click.group(invoke_without_command=True, short_help="List, verify, prune or remove the packed weights of this host.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def weights(context: click.Context, as_json: bool) -> None:
    """List the files of packed weights that workers of this host share, with the processes that map them.

    They are in the folder `weights` of the cache directory, $PONTIL_CACHE or ~/.cache/pontil. Those of the state "of
    other code" were packed by another version, and this one never reads them.
    """
    if context.invoked_subcommand is not None:
        return
    from pontil.launcher.models.weight_files import packed_weights

    rows = packed_weights(read_environment().cache_directory)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for line in table(list(map(shown, rows))) if rows else [NONE]:
        click.echo(line)


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of a file."""
    part = f", {row['part']}" if row.get("part") else ""
    rank = "" if row.get("ranks", 1) == 1 else f", rank {row['rank']} of {row['ranks']}"
    return {
        "name": row["name"][:12],
        "model": row["model"],
        "quantization": f"{row.get('quantization', '-')}{part}{rank}",
        "kernels": row.get("kernels", "-"),
        "MiB": row["size"] >> 20,
        "used (UTC)": time.strftime("%Y-%m-%d %H:%M", time.gmtime(row["used"])),
        "state": row["state"],
        "mapped by": " ".join(map(str, row["mapped_by"])) or "-",
    }


@weights.command(short_help="Read packed weights whole, and say which are damaged.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def verify(names: tuple[str, ...]) -> int:
    """Read files of packed weights whole and compare their sums: exit code 1 when one is damaged or incomplete. NAME is
    a model's name, or the beginning of a file's; without one all are read."""
    from pontil.launcher.models.weight_files import verify_weights

    damages = 0
    for title, damage in verify_weights(read_environment().cache_directory, names):
        click.echo(f"{title}: {'complete' if damage is None else damage}")
        damages += damage is not None
    return 1 if damages else 0


@weights.command(short_help="Remove packed weights that this version would never read.")
def prune() -> None:
    """Remove files that code of another version packed, and those that are damaged or unfinished, unless a process maps
    them or packs these weights. Another version that is still used packs its weights anew."""
    from pontil.launcher.models.weight_files import prune_weights

    for line in prune_weights(read_environment().cache_directory):
        click.echo(f"{line}: removed")


@weights.command(short_help="Remove packed weights.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everything", is_flag=True, help="Remove all of them.")
def remove(names: tuple[str, ...], everything: bool) -> int:
    """Remove files of packed weights. NAME is a model's name, or the beginning of a file's.

    Processes that map a file keep what they have, and its memory and disk space are free once these end; a worker that
    starts later packs the weights anew. A file that is being written is left: exit code 1.
    """
    from pontil.launcher.models.weight_files import remove_weights

    if bool(names) == everything:
        raise OptionError("say which packed weights to remove: by NAME, or --all.")
    skipped_count = 0
    for title, users, is_gone in remove_weights(read_environment().cache_directory, names):
        if not is_gone:
            skipped_count += 1
            click.echo(f"{title}: left, as a process is packing these weights")
            continue
        note = (
            f"; until they end it is kept by the processes {', '.join(map(str, users))}, which map it" if users else ""
        )
        click.echo(f"{title}: removed{note}")
    return 1 if skipped_count else 0
