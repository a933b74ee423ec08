# SPDX-License-Identifier: Apache-2.0
"""The state of processes that may end at any moment, also between two looks at them."""

import psutil

ENDED = "ended"


def status_of(process: int | psutil.Process) -> str:
    """Return psutil's name of the status, and ENDED once it has exited, reaped or not."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        status = str(found.status()) if found.is_running() else ENDED
    except psutil.NoSuchProcess:
        return ENDED
    return ENDED if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else status


def has_ended(process: int | psutil.Process) -> bool:
    return status_of(process) == ENDED
