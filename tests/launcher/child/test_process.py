# SPDX-License-Identifier: Apache-2.0
"""The start of a process that the system refuses: nothing of it is left open."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from open_resources import nothing_left_open

from pontil.launcher.child.process import ChildProcess
from pontil.launcher.child.starter import ExecStarter
from pontil.launcher.plan.child_plan import ChildPlan


def refusing_from(number: int, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return what does this work until its call of this number, which the system refuses as any later one."""
    left: Iterator[None] = iter([None] * number)

    def refused(*told: Any, **named: Any) -> Any:
        for _ in left:
            return work(*told, **named)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    return refused


@pytest.mark.parametrize(
    ("module", "name", "number"),
    [(os, "memfd_create", 0), (os, "fchmod", 0), *((os, "pipe", number) for number in range(3)),
     (subprocess, "Popen", 0)],
)  # fmt: skip
def test_a_process_that_cannot_be_started_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, number: int
) -> None:
    plan, starter = ChildPlan("proxy", "proxy", "cpu", (), {}), ExecStarter((sys.executable,), lambda threads: {})
    monkeypatch.setattr(module, name, refusing_from(number, getattr(module, name)))
    with nothing_left_open(), pytest.raises(OSError, match="Too many open files"):
        ChildProcess(plan, starter, 0.0)
