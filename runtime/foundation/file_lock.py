# SPDX-License-Identifier: Apache-2.0
"""A lock that one process of a host has at a time."""

import fcntl
import time
from collections.abc import Callable
from typing import IO, Any

POLL = 0.05


def lock_within(file: IO[Any], seconds: float, waits: Callable[[], None] = lambda: None) -> bool:
    """Lock an open file; the kernel releases it when the file is closed or its process ends. Return False if another
    process has it for so long. `waits` is called once, before a wait."""

    def is_ours() -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    return wait_within(seconds, is_ours, waits)


def wait_within(seconds: float, is_over: Callable[[], bool], waits: Callable[[], None] = lambda: None) -> bool:
    """Wait for what other processes do with a file, and the system tells nobody of. Return False if it is not over
    after so long. `waits` is called once, before a wait."""
    deadline, has_waited = time.monotonic() + seconds, False
    while not is_over():
        if time.monotonic() > deadline:
            return False
        if not has_waited:
            has_waited = True
            waits()
        time.sleep(POLL)  # flock can wait, but not with a deadline
    return True
