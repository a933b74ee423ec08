# SPDX-License-Identifier: Apache-2.0
"""Ends of processes with their parent, by the kernel's parent-death signal."""

import os
import signal
from collections.abc import Callable
from functools import partial

from pontil.launcher.child.reporter import EXIT_ORPHANED

PR_SET_PDEATHSIG = 1


def parent_death_signal(number: signal.Signals) -> Callable[[], int]:
    """Return a function that asks the kernel for this signal when the thread that forked the calling process ends.

    Exec keeps the request. A child that makes it between fork and exec is never without it, not even if it is stopped
    before its first instruction; so nothing is left to import or look up when the function is called.
    """
    return process_control(PR_SET_PDEATHSIG, int(number))


def process_control(option: int, value: int) -> Callable[[], int]:
    """Return a function that calls prctl(2) with this option and value."""
    import ctypes  # slow to load, and most commands start no process

    return partial(ctypes.CDLL(None, use_errno=True).prctl, option, value, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, and end now if it died before this was asked for."""
    parent_death_signal(signal.SIGKILL)()
    if os.getppid() != parent:
        os._exit(EXIT_ORPHANED)
