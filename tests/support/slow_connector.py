# SPDX-License-Identifier: Apache-2.0
"""Shared memory as slow as a network."""

import time

from pontil.runtime.transfer.connector import Done
from pontil.runtime.transfer.over_shm import Job, OverShm

RATE = 50e6


class SlowConnector(OverShm):
    """Bytes come at RATE, in bytes a second: a pull ends no sooner than that, and closing ends the wait."""

    def copy(self, job: Job) -> Done:
        until = time.monotonic() + len(job.pairs) * self.storage.layout.block_bytes / RATE
        done = super().copy(job)
        self.stopping.wait(max(0.0, until - time.monotonic()))
        return done
