# SPDX-License-Identifier: Apache-2.0
"""Hands for a giver and a taker without an engine: they note what they were told to do, in order."""

from pontil.runtime.transfer.giver import Gift
from pontil.runtime.transfer.taker import Take


class GivingNotes:
    """`freed` are blocks that came back, `notes` what was done."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.freed: list[int] = []

    def free_blocks(self, gift: Gift) -> None:
        self.notes.append("free_blocks")
        self.freed += gift.blocks

    def withdraw(self, gift: Gift, finished: bool) -> None:
        self.notes.append("finished" if finished else "withdrawn")


class TakingNotes:
    """`ended` are transfers whose blocks may be used again."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.ended: list[Take] = []

    def keep_blocks(self, take: Take) -> None:
        self.notes.append("keep_blocks")

    def free_blocks(self, take: Take) -> None:
        self.notes.append("free_blocks")
        self.ended.append(take)

    def promote(self, take: Take) -> None:
        self.notes.append("promote")
        self.ended.append(take)

    def go_on_without(self, take: Take) -> None:
        self.notes.append("go_on_without")

    def send_fetched(self, take: Take) -> None:
        self.notes.append("fetched")

    def send_abandon(self, take: Take) -> None:
        self.notes.append("abandon")

    def stop_worker(self, take: Take) -> None:
        self.notes.append("stop_worker")
