# SPDX-License-Identifier: Apache-2.0
"""Ghost state at the seams: which life of a block its owner announced, so that the copier knows, when it reads a block,
whether the number that guards it still tells the truth. The product knows nothing of it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from virtual_time import HERE, SeededWorld

from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.disaggregation.receiver import KVReceiver, ReceiveTransfer
from pontil.runtime.disaggregation.sender import KVSender, SenderCallbacks, SendTransfer
from pontil.runtime.disaggregation.states import ReceiveAction
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.wire.messages import ChunkReady, Handoff


class GhostPool(BlockPool):
    """A pool that counts the lives of each block: one ends when its last owner lets it go. By then the numbers under
    which the block was announced must be others."""

    def __init__(self, num_blocks: int, epochs: NDArray[np.int64]) -> None:
        super().__init__(num_blocks)
        self.epochs = epochs
        self.lives = [0] * num_blocks
        # By block, slot and epoch of the announcements in its present life.
        self.guards: dict[int, list[tuple[int, int]]] = {}

    def announced(self, block: int, slot: int, epoch: int) -> int:
        """Note an announcement; return the life of the block."""
        self.guards.setdefault(block, []).append((slot, epoch))
        return self.lives[block]

    def rest(self, block: int) -> None:
        for slot, epoch in self.guards.pop(block, ()):
            if int(self.epochs[slot]) == epoch:
                HERE.world.violate(
                    f"no_wrong_block_is_read: block {block} returns, and slot {slot} shows epoch {epoch}"
                )
        self.lives[block] += 1
        super().rest(block)


class FollowerGuards:
    """The numbers under which a driver announced the blocks that its followers have, too: before one of them writes a
    block anew, its own cell of each of them must show another."""

    def __init__(self) -> None:
        self.by_block: dict[int, set[tuple[int, int]]] = {}

    def announced(self, block: int, slot: int, epoch: int) -> None:
        self.by_block.setdefault(block, set()).add((slot, epoch))

    def check_begin(self, follower: object, storage: KVStorage, block: int) -> None:
        for slot, epoch in self.by_block.get(block, ()):
            if int(storage.epochs[slot]) == epoch:
                HERE.world.violate(
                    f"no_wrong_block_is_read: {follower} writes block {block} anew, and slot {slot} shows epoch {epoch}"
                )


class WatchedSender:
    """The callbacks of a KV sender, which also note the lives of the blocks that it announces."""

    def __init__(self, records: "GhostRecords", identity: str, pool: GhostPool, callbacks: SenderCallbacks) -> None:
        self.records, self.identity, self.pool, self.callbacks = records, identity, pool, callbacks

    def announce_blocks(self, message: ChunkReady | Handoff) -> None:
        guards = self.records.guards.get(self.identity)
        for block in message.block_ids:
            key = self.identity, message.slot, message.epoch, block
            self.records.announced[key] = self.pool.announced(block, message.slot, message.epoch)
            if guards is not None:
                guards.announced(block, message.slot, message.epoch)
        self.callbacks.announce_blocks(message)

    def free_blocks(self, sent: SendTransfer) -> None:
        self.callbacks.free_blocks(sent)

    def withdraw(self, sent: SendTransfer, finished: bool) -> None:
        self.callbacks.withdraw(sent, finished)


class GhostRecords:
    """All pools of a world by their identity, and what was announced of them: the life that a block had then, by its
    slot and epoch. `moved` are the transfers of which a pull was shown another epoch than it wanted."""

    def __init__(self, world: SeededWorld) -> None:
        self.world = world
        world.ghosts = self
        self.pools: dict[str, tuple[KVStorage, GhostPool | None, Any]] = {}
        self.announced: dict[tuple[str, int, int, int], int] = {}
        # By the identity of a pool: the grants by which it is read across a network with keys.
        self.security: dict[str, TransferSecurity] = {}
        # By the identity of a driver's pool.
        self.guards: dict[str, FollowerGuards] = {}
        self.moved: set[ReceiveTransfer] = set()

    def add(self, storage: KVStorage, pool: GhostPool | None, process: Any) -> None:
        """Note a pool. A follower has none of its own: its driver's blocks end their lives before its cells do. So what
        is read of its memory has no life to compare, and `FollowerGuards` look when it is written anew."""
        self.pools[storage.identity.hex()] = storage, pool, process

    def watch_sender(self, storage: KVStorage, pool: GhostPool, sender: KVSender) -> None:
        """Note the lives of the blocks that a KV sender announces."""
        sender.callbacks = WatchedSender(self, storage.identity.hex(), pool, sender.callbacks)

    def watch_receiver(self, receiver: KVReceiver) -> None:
        """Check that no transfer is decoded from blocks which their owner let go meanwhile."""
        promote = receiver.acts[ReceiveAction.PROMOTE]

        def promoted(transfer: ReceiveTransfer) -> None:
            if transfer in self.moved:
                self.world.violate(f"no_wrong_block_is_read: {transfer.transfer_id} is decoded from a moved epoch")
            promote(transfer)

        receiver.acts[ReceiveAction.PROMOTE] = promoted

    def check_written(self, identity: str, blocks: list[int], lives: list[int]) -> None:
        """Check that a pull writes to blocks that are in the life in which they were when it was started."""
        for block, before, now in zip(blocks, lives, self.lives_of(identity, blocks), strict=False):
            if before != now:
                self.world.violate(f"no_wrong_block_is_read: a pull writes to block {block}, which returned meanwhile")

    def lives_of(self, identity: str, blocks: list[int]) -> list[int]:
        """Return the lives of blocks, of which those of followers have none."""
        _, pool, _ = self.pools[identity]
        return [] if pool is None else [pool.lives[block] for block in blocks]

    def check_refused(self, identity: str, slot: int, epoch: int, shown: int, blocks: list[int]) -> None:
        """Check a pull that its owner refused: not all of the blocks may have been announced under the epoch that the
        cell still shows."""
        if shown == epoch and all((identity, slot, epoch, block) in self.announced for block in blocks):
            self.world.violate(f"who_was_told_of_blocks_may_read_them: slot {slot}, epoch {epoch}, is refused")

    def check_read(
        self, identity: str, slot: int, epoch: int, shown: int | None, blocks: list[int], lives: list[int]
    ) -> None:
        """Check a pull that has ended: it wanted blocks of this epoch, had them when they had these lives, and was
        shown an epoch afterwards. If that is the wanted one, nobody else may have owned the blocks."""
        if shown != epoch or self.pools[identity][1] is None:
            return
        for block, life in zip(blocks, lives, strict=True):
            announced = self.announced.get((identity, slot, epoch, block))
            if announced is None:
                self.world.violate(f"no_wrong_block_is_read: block {block} of slot {slot} was never announced")
            elif announced != life:
                self.world.violate(
                    f"no_wrong_block_is_read: block {block} was read after its owner had let it go, and slot {slot} "
                    f"still shows epoch {epoch}"
                )
