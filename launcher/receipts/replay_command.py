# SPDX-License-Identifier: Apache-2.0
"""The command `replay`: recorded requests, sent to another release and compared."""

import json
from pathlib import Path
from typing import Any

import click

from pontil.launcher.foundation.server_url import SERVER, full_url
from pontil.launcher.keys.api_key import ADMIN, bearer, key_flag
from pontil.launcher.keys.receipt_key import read_public_key
from pontil.launcher.options.options import read_environment
from pontil.launcher.receipts.replay import ReplayTarget, load_record, worker_rows, workers_of
from pontil.launcher.receipts.replay import replay as replayed

# Differences that are printed without --json.
MOST_LINES = 20


@click.command(short_help="Send recorded requests to a release, and say where answers differ.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--against", default=SERVER, show_default=True, metavar="URL", help="Address of the server.")
@click.option("--revision", metavar="NAME", help="Ask its workers of this revision, also those that are drained.")
@click.option("--worker", "names", multiple=True, metavar="NAME", help="Ask this worker, also a drained one.")
@click.option("--model", metavar="NAME", help="The model's name there, if it is another one.")
@click.option("--at-once", type=click.IntRange(1, 64), default=4, show_default=True, metavar="COUNT")
@click.option("--timeout", type=click.FloatRange(1, 86400), default=600.0, show_default=True, metavar="SECONDS")
@click.option("--public-key", metavar="HEX|FILE", help="Take records signed by this key alone.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with all differences.")
@key_flag(ADMIN)
def replay(
    file: Path,
    against: str,
    key: Path | None,
    public_key: str | None,
    as_json: bool,
    **how: Any,
) -> int:
    """Send the requests in FILE, which `record` made, to a server, or to workers of it that need not serve yet: exit
    code 0 when all answers are as recorded, 1 when not, with where each first differs, 2 when nothing can be compared.
    """
    record = load_record(file, None if public_key is None else read_public_key(public_key, "--public-key"))
    url, headers = full_url(against), bearer(key, ADMIN, read_environment().variables)
    workers = [*workers_of(worker_rows(url, headers), how["revision"]), *how["names"]]
    outcome = replayed(record, ReplayTarget(url, headers, workers, how["model"]), how["timeout"], how["at_once"])
    lines = outcome.lines
    if as_json:
        click.echo(json.dumps(outcome.to_json(), indent=2))
    else:
        for line in lines[:MOST_LINES]:
            click.echo(f"DIFFER  {line}")
        if len(lines) > MOST_LINES:
            click.echo(f"        and {len(lines) - MOST_LINES} more")
        click.echo(f"{'equal ' if outcome.is_equal else 'DIFFER'}  {outcome.summary}")
    return 0 if outcome.is_equal else 1
