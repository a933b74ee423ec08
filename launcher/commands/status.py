# SPDX-License-Identifier: Apache-2.0
"""The command `status`: the processes of a running server, once or repeatedly."""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import click

from pontil.launcher.commands.terminal.status_table import (
    class_table,
    coloured,
    cut,
    duration,
    key_table,
    lease_table,
    plain,
    prompt_table,
    table,
)
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.foundation.server_url import SERVER, full_url
from pontil.launcher.keys.api_key import ADMIN, bearer, key_flag
from pontil.launcher.options.options import read_environment

# The server renews its own figures once a second.
EVERY = 1.0
# A healthy server answers at once.
TIMEOUT = 5.0
# The supervisor reports every second; one that has not for so long is stopped or stuck.
STALE = 3.0
Answer = dict[str, Any]


@click.command()
@click.argument("address", metavar="[URL]", required=False)
@click.option("--url", default=SERVER, show_default=True, help="Address of the server.")
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with --watch one line each time.")
@key_flag(ADMIN)
def status(address: str | None, url: str, watch: bool, as_json: bool, key: Path | None) -> None:
    """Show the processes of a running server: state, load, resources used, and why one is not ready; how much of
    each key's prompts was cached, and what it leases. Its address may be an argument or --url."""
    url = full_url(address or url)
    headers = bearer(key, ADMIN, read_environment().variables)
    if watch:
        watch_until_told(lambda: ask(url, headers), JsonLines(sys.stdout) if as_json else Screen(sys.stdout))
    else:
        answer = ask(url, headers)
        click.echo(json.dumps(answer, indent=2) if as_json else "\n".join(lines_of(answer)))


def ask(url: str, key: Mapping[str, str]) -> Answer:
    """Return the answer of /admin/topology to this key. Raises LaunchError."""
    from pontil.launcher.foundation.server_client import fetch

    answer = fetch(url, "/admin/topology", TIMEOUT, key)
    if not isinstance(answer, dict) or not isinstance(answer.get("processes"), list):
        raise LaunchError(f"the server at {url} is no pontil: name the one that `launch` printed with --url")
    return answer


def lines_of(answer: Answer, width: int | None = None) -> list[str]:
    """Return the table, those of the keys' prompts and leases, of the classes that have requests and of the keys in
    them, if there are any, followed by warnings: if it is out of date, and if the launch allows chaos. An error is a
    line of its own."""
    if "error" in answer:
        return [cut(plain(answer["error"]), width)]
    age = answer.get("age_seconds", 0.0)
    doubt = f"The launcher has been silent for {duration(age)}: this is how things were then."
    warnings = [doubt] if age > STALE else []
    if answer.get("chaos"):
        warnings.append("Chaos is allowed here (--allow-chaos): `pontil chaos` may kill, stop and slow its processes.")
    tables = table(answer["processes"], width) + prompt_table(answer.get("prompts", ()), width)
    tables += lease_table(answer.get("leases", ()), width) + class_table(answer.get("classes", ()), width)
    tables += key_table(answer.get("keys", ()), width)
    return tables + [cut(line, width) for line in warnings]


class JsonLines:
    """Output of one JSON object per line."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    def show(self, answer: Answer) -> None:
        self.out.write(json.dumps(answer) + "\n")
        self.out.flush()

    def end(self) -> None:
        """Do nothing: every line is complete."""


class Screen:
    """Tables, one below the other; on a terminal each replaces the one before. Never taller than the terminal, since
    lines that have scrolled off cannot be redrawn."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.terminal = out.isatty()
        self.drawn = 0

    def show(self, answer: Answer) -> None:
        columns, rows = extent(self.out) if self.terminal else (None, None)
        lines = lines_of(answer, columns)
        if rows is not None and len(lines) >= rows:
            left_out = len(lines) - rows + 2
            lines = [*lines[:-left_out], cut(f"and {left_out} more", columns)]
        if self.terminal:
            lines = coloured(lines, self.out)
            back = f"\x1b[{self.drawn}F" if self.drawn else ""
            self.out.write(back + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        else:
            self.out.write(("\n" if self.drawn else "") + "".join(f"{line}\n" for line in lines))
        self.drawn = len(lines)
        self.out.flush()

    def end(self) -> None:
        """Clear the cursor's line, below the last table: the terminal has shown Ctrl-C there."""
        if self.terminal:
            self.out.write("\r\x1b[K")
            self.out.flush()


def extent(terminal: TextIO) -> tuple[int | None, int | None]:
    """Return the terminal's columns and rows; None if it does not know them."""
    columns, rows = os.get_terminal_size(terminal.fileno())
    return columns or None, rows or None


def watch_until_told(look: Callable[[], Answer], screen: "JsonLines | Screen") -> None:
    """Show answers until Ctrl-C or until the output has no reader. A server that stops answering may come back."""
    with suppress(KeyboardInterrupt):
        try:
            screen.show(look())
            for answer in answers(look):
                screen.show(answer)
        except BrokenPipeError:
            # Python's buffered output cannot be written at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with suppress(BrokenPipeError):
        screen.end()


def answers(look: Callable[[], Answer]) -> Iterator[Answer]:
    """Yield one answer every second: the processes, or under `error` why there are none."""
    pause = threading.Event()
    while not pause.wait(EVERY):
        try:
            yield look()
        except LaunchError as error:
            yield {"error": error.message}
