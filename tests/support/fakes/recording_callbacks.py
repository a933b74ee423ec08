# SPDX-License-Identifier: Apache-2.0
"""Callbacks of a KV sender and a KV receiver without an engine: they record the calls in order."""

from pontil.runtime.disaggregation.receiver import ReceiveTransfer
from pontil.runtime.disaggregation.sender import SendTransfer
from pontil.runtime.wire.messages import ChunkReady, Handoff


class GivingNotes:
    """Callbacks of a sender. `announced` are its messages, `freed` the freed blocks, `notes` the other calls."""

    def __init__(self) -> None:
        self.announced: list[ChunkReady | Handoff] = []
        self.notes: list[str] = []
        self.freed: list[int] = []

    def announce_blocks(self, message: ChunkReady | Handoff) -> None:
        self.announced.append(message)

    def free_blocks(self, sent: SendTransfer) -> None:
        self.notes.append("free_blocks")
        self.freed += sent.blocks

    def withdraw(self, sent: SendTransfer, finished: bool) -> None:
        self.notes.append("finished" if finished else "withdrawn")


class TakingNotes:
    """Callbacks of a receiver. `ended` are transfers whose blocks may be used again."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.ended: list[ReceiveTransfer] = []

    def keep_blocks(self, take: ReceiveTransfer) -> None:
        self.notes.append("keep_blocks")

    def free_blocks(self, take: ReceiveTransfer) -> None:
        self.notes.append("free_blocks")
        self.ended.append(take)

    def promote(self, take: ReceiveTransfer) -> None:
        self.notes.append("promote")
        self.ended.append(take)

    def go_on_without(self, take: ReceiveTransfer) -> None:
        self.notes.append("go_on_without")

    def send_fetched(self, take: ReceiveTransfer) -> None:
        self.notes.append("fetched")

    def send_abandon(self, take: ReceiveTransfer) -> None:
        self.notes.append("abandon")

    def stop_worker(self, take: ReceiveTransfer) -> None:
        self.notes.append("stop_worker")
