# SPDX-License-Identifier: Apache-2.0
"""Shared memory with the bandwidth of a network."""

import time

from pontil.runtime.transfer.connector import PullResult
from pontil.runtime.transfer.shm.connector import ShmConnector
from pontil.runtime.transfer.shm.copying_connector import CopyJob
from pontil.runtime.transfer.shm.peer_pool import PeerPool

RATE = 50e6


class SlowConnector(ShmConnector):
    """Connector limited to RATE bytes a second: a pull ends no sooner than that allows, and closing ends the wait."""

    def copy(self, job: CopyJob[PeerPool]) -> PullResult:
        until = time.monotonic() + len(job.pull.pairs) * self.storage.layout.block_bytes / RATE
        done = super().copy(job)
        self.jobs.closing.wait(max(0.0, until - time.monotonic()))
        return done
