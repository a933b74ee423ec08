# SPDX-License-Identifier: Apache-2.0
"""Scripted launches: a supervisor in a process of its own, whose children follow a script."""

import json
import os
import re
import select
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from forked_program import fork_program
from process_state import has_ended

from pontil.runtime.foundation.line_pipe import LinePipe

DEADLINE = 60.0


class ScriptedLaunch:
    """One scripted launch. `environment` is the launcher's, by default this process's; `terminal` is the slave end of
    the terminal that it belongs to."""

    def __init__(
        self, folder: Path, children: dict[str, list[str]], terminal: int | None = None,
        environment: Mapping[str, str] | None = None, **told: Any,
    ) -> None:  # fmt: skip
        self.trace, self.base, self.lines = folder / "trace", folder / "run", list[str]()
        orders = {
            "prepare": ["ready", "end"], "policy": {"first_delay": 0.01}, "limits": {}, "drain_timeout": 10,
            "children": children, "trace": str(self.trace), "base": str(self.base),
            "terminal": None if terminal is None else os.ttyname(terminal),
        } | told  # fmt: skip
        line = [str(Path(__file__).parent / "scripted_launch.py"), json.dumps(orders)]
        reading, writing = os.pipe()
        with open(os.devnull) as nothing:
            files = [nothing.fileno(), writing, writing]
            self.process = fork_program(
                line, Path.cwd(), files, os.environ if environment is None else environment, computing=False
            )
        os.close(writing)
        self.pipe = LinePipe(reading)
        self.unseen: list[str] = []

    def until(self, pattern: str) -> re.Match[str]:
        """Read the console up to the first new line that matches the pattern."""
        deadline = time.monotonic() + DEADLINE
        while self.read(deadline):
            while self.unseen:
                self.lines.append(self.unseen.pop(0))
                if found := re.search(pattern, self.lines[-1]):
                    return found
        raise AssertionError(f"no {pattern!r} in:\n{self.console}")

    def read(self, deadline: float) -> bool:
        """Return whether there is unread output, or may be some before the deadline."""
        if self.unseen:
            return True
        if self.pipe.closed or not select.select([self.pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        self.unseen += [line.decode() for line in self.pipe.read()]
        return True

    def end(self) -> int:
        """Wait for the exit code, reading the rest of the console."""
        deadline = time.monotonic() + DEADLINE
        while self.read(deadline):
            self.lines += self.unseen
            self.unseen.clear()
        return self.process.wait(timeout=max(0.1, deadline - time.monotonic()))

    @property
    def console(self) -> str:
        return "\n".join(self.lines)

    def children(self) -> dict[str, psutil.Process]:
        """The running children by name. One that has yet to exec has its parent's command line, without a name."""
        return {name: child for name, child in self.family().items() if name != "fork-server"}

    def family(self) -> dict[str, psutil.Process]:
        """The running children, and the fork server."""
        found: dict[str, psutil.Process] = {}
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # it has ended, a zombie included
                if len(line := child.cmdline()) > 2:
                    found[line[2]] = child
        return found

    def commands(self) -> list[dict[str, Any]]:
        """The commands sent to the scripted proxies so far; a half-written last line is left out."""
        noted = self.trace.read_text() if self.trace.exists() else ""
        return [json.loads(line) for line in noted[: noted.rfind("\n") + 1].splitlines()]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        select.select([], [], [], 0.01)


@pytest.fixture
def all_gone() -> Callable[[Iterable[psutil.Process]], None]:
    """A function that waits for processes to end."""
    return lambda processes: wait_for(lambda: all(map(has_ended, processes)))


@pytest.fixture
def waiting() -> Callable[[Callable[[], object]], None]:
    return wait_for


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Callable[..., ScriptedLaunch]]:
    """A function that starts scripted launches; after the test none of their processes may be left."""
    launches: list[ScriptedLaunch] = []

    def start(children: dict[str, list[str]], **told: Any) -> ScriptedLaunch:
        launches.append(ScriptedLaunch(tmp_path, children, **told))
        return launches[-1]

    yield start
    for launch in launches:
        family = psutil.Process(launch.process.pid).children(recursive=True) if launch.process.poll() is None else []
        launch.process.kill()
        launch.process.wait()
        launch.pipe.close()
        wait_for(lambda: all(map(has_ended, family)))  # noqa: B023
