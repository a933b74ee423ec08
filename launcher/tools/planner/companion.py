# SPDX-License-Identifier: Apache-2.0
"""A second process with the model of a profile, which computes beside the one that is measured."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pontil.launcher.child.child import child_command
from pontil.launcher.foundation.errors import LaunchError


@contextmanager
def companion(config: dict[str, Any], cores: Sequence[int]) -> Iterator[Callable[[str], None]]:
    """Start one on these cores, and give what tells it what to do: it has begun when that returns. Raises
    LaunchError."""
    command = [*child_command("profile"), "--company", "--output", "/dev/null"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def tell(what: str) -> None:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        with suppress(BrokenPipeError):
            print(what, file=process.stdin, flush=True)
        if not process.stdout.readline():
            raise LaunchError(f"the second process of a profile ended: {process.stderr.read().strip()[-300:]}")

    try:
        tell(json.dumps(config | {"cores": list(cores)}))
        yield tell
    finally:
        # The end of its input is its end; it does what it was told until it sees that.
        process.communicate()


def be_companion() -> None:
    """Do what the process says whose child this is, line by line: the first one has the worker's configuration."""
    from pontil.runtime.planner.company import keep_company
    from pontil.runtime.planner.measuring import StepMeter, clock_of, machine_of, measured_config

    worker = measured_config(json.loads(sys.stdin.readline()))
    with machine_of(worker) as (machine, sizes):
        meter = StepMeter(machine, sizes, 1, clock_of(worker), lambda _: None)
        print("ready", flush=True)
        keep_company(meter, sys.stdin, sys.stdout)
