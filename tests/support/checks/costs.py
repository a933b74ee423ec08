# SPDX-License-Identifier: Apache-2.0
"""The processor time of each test with all its processes: `pytest --costs FILE`, with or without `--jobs`."""

import json
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

SHOWN = 40
TICK = 1 / os.sysconf("SC_CLK_TCK")


def spent() -> float:
    """Return the seconds of processor time of this process, of all that it began, and of what these have begun. A
    process that lost its parent before its end is not seen."""
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in own) + spent_below(os.getpid())


def spent_by(pid: int, parent: int) -> float:
    """Return the seconds of a living process, of those it has waited for, and of those below it. It may have ended
    since it was listed, and something else have its number."""
    with suppress(OSError):
        # Behind the name, see proc(5): user and system, its own and of children that it has waited for.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if int(fields[1]) == parent:
            return sum(map(int, fields[11:15])) * TICK + spent_below(pid)
    return 0.0


def spent_below(pid: int) -> float:
    return sum(spent_by(child, pid) for child in children(pid))


def children(pid: int) -> set[int]:
    """Return those of each of its threads, which may end meanwhile."""
    found = set[int]()
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found.update(map(int, (task / "children").read_text().split()))
    return found


class TestCosts:
    """Writes a line for each test, from whichever process runs it, and shows the dearest files and tests at the end."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_text("")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before, began = spent(), time.monotonic()
        result = yield
        line = item.nodeid, round(spent() - before, 4), round(began, 3), round(time.monotonic(), 3)
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        tests = Counter[str]()
        for line in self.file.read_text().splitlines():
            test, seconds, *_ = json.loads(line)
            tests[test] += seconds
        files = Counter[str]()
        for test, seconds in tests.items():
            files[test.partition("::")[0]] += seconds
        terminalreporter.section(f"{sum(tests.values()):.0f} s of processor time by tests")
        for name, seconds in (*files.most_common(SHOWN), *tests.most_common(SHOWN)):
            terminalreporter.line(f"{seconds:8.2f}s {name}")
