# SPDX-License-Identifier: Apache-2.0
"""A launch of one part of a system as a child process, which ends with the process that started it."""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TextIO

from pontil.launcher.child.child import child_command
from pontil.launcher.child.parent_death import parent_death_signal
from pontil.launcher.child.process import memory_file
from pontil.launcher.options.environment import PREFIX, SECRETS

# Variables with our prefix that are about a host and not about one launch.
HOSTS = ("PONTIL_CACHE", *SECRETS)
# Last lines that are kept for whoever is told of its end.
KEPT_LINES = 20


def without_options(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which no variable sets an option: the words say all of them."""
    return {name: value for name, value in variables.items() if not name.startswith(PREFIX) or name in HOSTS}


class ChildLaunch:
    """A running launch. `keys` is the text of its key file, which is never on a disk or in a command line. With `echo`
    its output is read, repeated there, and its last lines are kept; else it has this process's own.

    Start it in a thread that lives as long as the launch may: the launch is killed when that thread ends, and its
    processes with it.
    """

    def __init__(
        self, words: Sequence[str], keys: str | None, variables: Mapping[str, str], echo: TextIO | None = None
    ) -> None:
        descriptor = None if keys is None else memory_file("pontil-keys", keys.encode())
        key_flags = [] if descriptor is None else [f"--keys=/proc/self/fd/{descriptor}"]
        self.echo = echo
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        output = None if echo is None else subprocess.PIPE
        try:
            self.process = subprocess.Popen(
                [*child_command("launch"), *words, *key_flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if echo is None else subprocess.STDOUT,
                pass_fds=[] if descriptor is None else [descriptor],
                env=without_options(variables),
                start_new_session=True,
                preexec_fn=parent_death_signal(signal.SIGKILL),
            )
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def wait(self) -> int:
        """Repeat its output until it ends; return the exit code as a shell has it."""
        if self.process.stdout is not None:
            with self.process.stdout as output:
                for raw in output:
                    line = raw.decode(errors="replace").rstrip()
                    self.lines.append(line)
                    print(line, file=self.echo or sys.stderr, flush=True)
        return shell_code(self.process.wait())

    @property
    def ended(self) -> int | None:
        """The exit code once it has ended."""
        code = self.process.poll()
        return None if code is None else shell_code(code)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


def shell_code(code: int) -> int:
    return code if code >= 0 else 128 - code
