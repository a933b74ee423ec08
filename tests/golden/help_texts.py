# SPDX-License-Identifier: Apache-2.0
"""Print the help of every command. In a process of its own, since click keeps the help option of a command as it was
first asked for, which another test may have done outside the command group."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
from click.testing import CliRunner

WIDTH = 110


def helps(top: click.Command, command: click.Command, words: list[str]) -> Iterator[str]:
    """Yield the help of a command and of all below it."""
    done = CliRunner().invoke(top, [*words[1:], "--help"], prog_name=words[0], terminal_width=WIDTH)
    yield f"$ {' '.join(words)} --help\n{done.output}\n"
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from helps(top, below, [*words, name])


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    # Before what imports the checkout as package pontil.
    import_module("app")
    from pontil.launcher.cli import cli

    sys.stdout.write("".join(helps(cli, cli, ["pontil"])))


if __name__ == "__main__":
    main()
