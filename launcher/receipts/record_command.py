# SPDX-License-Identifier: Apache-2.0
"""The command `record`: a sample of a running server's requests, with receipts of their answers."""

from pathlib import Path
from typing import Any

import click

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.foundation.server_url import SERVER, full_url
from pontil.launcher.keys.api_key import ADMIN, bearer, key_flag
from pontil.launcher.options.options import read_environment
from pontil.launcher.receipts.record_writer import RecordLimits, write_record
from pontil.runtime.config.readers import duration, size


def limit(read: Any) -> Any:
    """Return a callback that reads an option's value as a launch reads it."""

    def parsed(context: click.Context, parameter: click.Parameter, value: str) -> Any:
        try:
            return read(value)
        except ValueError as error:
            raise OptionError(f"--{parameter.name} {error}, not {value!r}.") from None

    return parsed


@click.command(short_help="Record requests with receipts, to be replayed on another release.")
@click.argument("address", metavar="[URL]", required=False)
@click.option("--url", default=SERVER, show_default=True, help="Address of the server.")
@click.option("-o", "--output", "path", type=click.Path(path_type=Path), required=True, metavar="FILE")
@click.option("--requests", type=click.IntRange(1, 100_000), default=100, show_default=True, metavar="COUNT")
@click.option("--one-in", type=click.IntRange(1, 1_000_000), default=1, metavar="COUNT", help="Of so many take one.")
@click.option("--within", callback=limit(duration), default="600s", show_default=True, help="Record for so long.")
@click.option("--size", callback=limit(size), default="64MiB", show_default=True, help="Bytes of FILE at most.")
@click.option("--redact", is_flag=True, help="Keep digests alone: no prompt, no answer. It cannot be replayed.")
@key_flag(ADMIN)
def record(
    address: str | None, url: str, path: Path, redact: bool, key: Path | None, requests: int, **bounds: Any
) -> None:
    """Record requests of clients of a running server in FILE, until there are --requests of them, --size or --within
    is reached, or Ctrl-C: with receipts of their answers, for `replay`.

    Prompts and answers are in FILE, which only you can read. The server keeps nothing, and records only while this
    command runs.
    """
    limits = RecordLimits(requests, bounds["one_in"], bounds["size"], bounds["within"], redact)
    headers = bearer(key, ADMIN, read_environment().variables)
    made = write_record(
        full_url(address or url), headers, path, limits, lambda: click.echo("recording; Ctrl-C ends it", err=True)
    )
    left_out = f"; {made.left_out} more were left out: they are too long, or came too fast" if made.left_out else ""
    plural = "" if made.requests == 1 else "s"
    click.echo(f"{path} has {made.requests} request{plural}{', redacted' if redact else ''}{left_out}")
