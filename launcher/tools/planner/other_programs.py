# SPDX-License-Identifier: Apache-2.0
"""The processor time of other programs while something is measured."""

import os
import time

import psutil

# Cores beyond which what was measured is not to be trusted.
MOST_OTHERS = 0.1


class OtherPrograms:
    """Says how many cores other programs used since it was made. When it is asked, all processes that this one started
    meanwhile have ended: only then the system knows their time."""

    def __init__(self) -> None:
        self.begun, self.all, self.own = time.monotonic(), busy_seconds(), own_seconds()

    def cores(self) -> float:
        used = busy_seconds() - self.all - (own_seconds() - self.own)
        return max(0.0, used / max(1e-9, time.monotonic() - self.begun))


def busy_seconds() -> float:
    """Return the seconds that all cores were busy so far, or taken by another machine of the host."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def own_seconds() -> float:
    """Return the processor time of this process and of all that it has started and that have ended."""
    return float(sum(os.times()[:4]))
