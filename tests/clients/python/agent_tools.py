# SPDX-License-Identifier: Apache-2.0
"""The tools of the tests' coding agent, which work in the current folder.

`agent_tools.py NAME ARGUMENTS` prints the result of a call. The agents of both languages have the same tools."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

MOST_BYTES = 10_000
TIMEOUT = 60.0


class RefusedCall(Exception):
    """A call that cannot be carried out, with a sentence for the model."""


def file_of(path: str) -> Path:
    """Return a file of the folder, and of no other place."""
    file = Path(path)
    if not file.resolve().is_relative_to(Path.cwd()) or not file.is_file():
        raise RefusedCall(
            f"there is no file {path!r}; there are {', '.join(sorted(one.name for one in Path.cwd().iterdir()))}"
        )
    return file


def read_file(path: str) -> str:
    return file_of(path).read_text()[:MOST_BYTES]


def edit_file(path: str, old: str, new: str) -> str:
    file = file_of(path)
    text = file.read_text()
    if text.count(old) != 1:
        raise RefusedCall(f"the old text must stand in {path} once, and stands there {text.count(old)} times:\n{text}")
    file.write_text(text.replace(old, new)[:MOST_BYTES])
    return f"edited:\n{file.read_text()}"


def run_python(path: str) -> str:
    command = (sys.executable, file_of(path))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise RefusedCall(f"{path} ran for more than {TIMEOUT:.0f} seconds") from None
    return (done.stdout + done.stderr)[:MOST_BYTES]


TOOLS: dict[str, Callable[..., str]] = {tool.__name__: tool for tool in (read_file, edit_file, run_python)}


def carry_out(name: str, arguments: str) -> str:
    """Return the result of a call, or what is wrong with it."""
    try:
        return TOOLS[name](**json.loads(arguments))
    except RefusedCall as reason:
        return f"Error: {reason}"
    except (KeyError, TypeError, ValueError) as error:
        return f"Error: {error}"


if __name__ == "__main__":
    print(carry_out(*sys.argv[1:3]), end="")
