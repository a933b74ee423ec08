# SPDX-License-Identifier: Apache-2.0
"""Both sides of handoffs in one process, over shared memory."""

import threading
from collections.abc import Callable

import torch
from recording_callbacks import GivingNotes, TakingNotes
from staged import PublisherAtOnce, storage_in

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.disaggregation.rank_pools import RankPools
from pontil.runtime.disaggregation.receiver import KVReceiver, ReceiveTransfer
from pontil.runtime.disaggregation.sender import KVSender
from pontil.runtime.transfer.shm.connector import ShmConnector

LAYOUT = KVLayout(16, 2, 2, 8, "bfloat16")
DEADLINE = 60.0


class Pair1P1D:
    """A KV sender with random blocks, and a KV receiver that has mapped them."""

    def __init__(self, memory: str) -> None:
        self.theirs, self.ours = storage_in(memory, LAYOUT, 12), storage_in(memory, LAYOUT, 9)
        self.theirs.tensor.copy_(torch.randn(self.theirs.tensor.shape))
        self.wakeup = threading.Event()
        self.letting_go, self.receiving = GivingNotes(), TakingNotes()
        self.publisher = PublisherAtOnce(self.theirs, lambda: None) if self.theirs.staged else None
        self.kv_sender = KVSender(RankPools(self.theirs, publisher=self.publisher), "P", self.letting_go)
        self.source = ShmConnector(self.theirs, lambda: None)
        self.connector = ShmConnector(self.ours, self.wakeup.set)
        self.connector.attach("P", self.source.register())
        self.kv_receiver = KVReceiver(self.connector, RankPools(self.ours), self.receiving)

    def close(self) -> None:
        self.source.close()
        self.connector.close()
        if self.publisher is not None:
            self.publisher.close()

    def wait(self, now: float = 0.0) -> list[ReceiveTransfer]:
        """Poll until some transfer has ended; return the ended ones."""
        self.poll_until(lambda: bool(self.receiving.ended), now)
        ended, self.receiving.ended = self.receiving.ended, []
        return ended

    def poll_until(self, condition: Callable[[], bool], now: float = 0.0) -> None:
        while not condition():
            assert self.wakeup.wait(DEADLINE), "no pull ended"
            self.wakeup.clear()
            self.kv_receiver.poll(now)
