# SPDX-License-Identifier: Apache-2.0
"""Pulls of items into this worker's blocks. An item is accepted as KV blocks are: the pull ended without an error, the
peer's epoch cell, read after the data, shows the announced number, and every digest is the one that was stated."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from pontil.runtime.config.worker_config import DEADLINES, Deadlines
from pontil.runtime.errors import TransferError
from pontil.runtime.stages.streams.item_form import array_of, grant_of, size_of
from pontil.runtime.stages.streams.stream_memory import StreamMemory
from pontil.runtime.transfer.connector import Connector, Pull
from pontil.runtime.wire.messages import StreamItem

# The longest time that a cancelled pull may take to end. Connectors promise far less.
DRAIN_TIMEOUT = 30.0


class ItemTaker(Protocol):
    """The receiver of an item that was asked for; it hears of each pull once, unless it was cancelled."""

    secret: str

    def pulled(self, item: StreamItem, array: NDArray[Any]) -> None: ...
    def spoiled(self, item: StreamItem, reason: str) -> None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class ItemPull(Pull):
    """A pull of an item. Without a `taker` it was given up, and has to end by `drained_by`."""

    item: StreamItem
    blocks: list[int]
    taker: ItemTaker | None
    last_progress: float
    seen: int = 0
    drained_by: float = 0.0


@dataclass(slots=True, eq=False)
class ItemPuller:
    """Owner of the blocks that pulls fill: they are free again only when no copier can write to them."""

    connector: Connector
    memory: StreamMemory
    deadlines: Deadlines = DEADLINES
    open: list[ItemPull] = field(default_factory=list)
    items: int = 0
    bytes: int = 0

    def start(self, item: StreamItem, taker: ItemTaker, now: float) -> bool:
        """Begin to pull an item of known form. Return False while there is no room for it."""
        blocks = self.memory.take(len(item.block_ids))
        if blocks is None:
            return False
        pairs = list(zip(item.block_ids, blocks, strict=True))
        pull = ItemPull(
            item.sender,
            pairs,
            item.slot,
            grant_of(item, taker.secret),
            item=item,
            blocks=blocks,
            taker=taker,
            last_progress=now,
        )
        self.connector.pull(pull)
        pull.seen = pull.received
        self.open.append(pull)
        return True

    def poll(self, now: float) -> None:
        """Handle the pulls that ended, and those that stall."""
        for pull in self.connector.poll():
            if isinstance(pull, ItemPull) and pull in self.open:
                self.open.remove(pull)
                self.end(pull)
        for pull in list(self.open):
            self.watch(pull, now)

    def end(self, pull: ItemPull) -> None:
        """Hand over an item that is as it was sent, and free its blocks."""
        item, taker, done = pull.item, pull.taker, pull.end
        data = self.memory.read(pull.blocks, size_of(item)) if taker is not None and done.error is None else None
        self.memory.give_back(pull.blocks)
        if taker is None:
            return
        if data is None:
            taker.spoiled(item, str(done.error))
        elif done.epoch != item.epoch or done.digests != item.digests:
            taker.spoiled(item, "what arrived is not what was sent")
        else:
            self.items, self.bytes = self.items + 1, self.bytes + len(data)
            taker.pulled(item, array_of(item, data))

    def watch(self, pull: ItemPull, now: float) -> None:
        """Give up a pull without progress. Raises TransferError, which ends this process, for one that does not end:
        its blocks would be unsafe for ever."""
        if pull.taker is None:
            if now >= pull.drained_by:
                raise TransferError(
                    f"a pull that was to end went on for {DRAIN_TIMEOUT:.0f} s: this worker stops rather than let go of"
                    " memory that is being written to; see whether the network or the peer's host is stuck"
                )
            return
        received = pull.received
        if received != pull.seen:
            pull.seen, pull.last_progress = received, now
        elif now - pull.last_progress > self.deadlines.kv_stall_timeout:
            taker = pull.taker
            self.give_up(pull, now)
            taker.spoiled(pull.item, f"no bytes came for {self.deadlines.kv_stall_timeout:g} s")

    def give_up(self, pull: ItemPull, now: float) -> None:
        pull.taker, pull.drained_by = None, now + DRAIN_TIMEOUT
        pull.cancel()

    def cancel(self, taker: ItemTaker, now: float, peer: str | None = None) -> None:
        """Give up all pulls for a taker, or those from one peer. It does not hear of them again."""
        for pull in self.open:
            if pull.taker is taker and peer in (None, pull.peer):
                self.give_up(pull, now)
