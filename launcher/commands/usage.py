# SPDX-License-Identifier: Apache-2.0
"""The commands that read a usage log: `usage` and `audit`."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pontil.launcher.foundation.columns import aligned
from pontil.launcher.keys.api_key import ADMIN, bearer, key_flag
from pontil.launcher.options.options import read_environment

AUDIT_ATTEMPTS, AUDIT_PAUSE = 5, 0.3


@click.command(short_help="Show the tokens used, by key, model and day.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def usage(file: Path, as_json: bool) -> None:
    """Show the tokens used, by key, model and day (UTC), from the FILE that was given to launch as --usage-log."""
    from pontil.launcher.roles import read_usage

    rows = read_usage(file)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for line in table(without_leases(rows)):
        click.echo(line)


def without_leases(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Leave the columns of leases out where there are none."""
    if any(row["leases"] for row in rows):
        return rows
    return [{name: value for name, value in row.items() if not name.startswith("lease")} for row in rows]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return rows under their headings: text left-aligned, numbers right-aligned."""
    if not rows:
        return ["no requests"]
    cells = [[name.replace("_", " ") for name in rows[0]], *([str(value) for value in row.values()] for row in rows)]
    return aligned(cells, [not isinstance(value, str) for value in rows[0].values()])


@click.command(short_help="Prove that workers, ledger and usage log have equal counts.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--url", help="A running server, whose ledger is compared too.")
@key_flag(ADMIN)
def audit(file: Path, url: str | None, key: Path | None) -> int:
    """Compare the workers' counts, the ledger's bookings and the usage log FILE: exit code 1 when they differ."""
    findings = audit_until_equal(file, url, bearer(key, ADMIN, read_environment().variables))
    for equal, text in findings:
        click.echo(f"{'equal ' if equal else 'DIFFER'}  {text}")
    return 0 if all(equal for equal, _ in findings) else 1


def bills_named(file: Path, names: str) -> list[dict[str, Any]]:
    """Return the rows of the requests in a usage log whose names begin so. Raises LaunchError."""
    from pontil.launcher.roles import read_bills

    return read_bills(file, names)


def audit_until_equal(file: Path, url: str | None, key: Mapping[str, str]) -> list[tuple[bool, str]]:
    """Return the comparisons of a usage log, and of a running server's ledger if it is named. Raises LaunchError."""
    from pontil.launcher.foundation.server_client import fetch
    from pontil.launcher.roles import audit_usage

    # A running server goes on counting between its answer and the reading of the file, so only a lasting difference
    # counts. No event announces agreement: the ledger is asked again. A file alone does not change.
    findings: list[tuple[bool, str]] = []
    for attempt in range(AUDIT_ATTEMPTS if url else 1):
        if attempt:
            time.sleep(AUDIT_PAUSE)
        findings = audit_usage(file, fetch(url, "/admin/ledger", key=key) if url else None)
        if all(equal for equal, _ in findings):
            break
    return findings
