# SPDX-License-Identifier: Apache-2.0
"""The prefill side of handoffs: what is promised to which peer, under which epoch, until when.

A reservation slot has one epoch cell in the shared memory. The cell is bumped before the blocks of its reservation go
back to the pool, whatever the reason, so that a peer that read them too late sees another number than it was told.
"""

from collections import deque
from dataclasses import dataclass, field

from pontil.runtime.cache.storage import EPOCH_SLOTS, KVStorage
from pontil.runtime.transfer.states import GIVING_MOVES, Giving, move
from pontil.runtime.wire.messages import ChunkReady, Handoff, Logprobs

LEASE = 30.0
LEASE_TOTAL = 120.0


@dataclass(slots=True, eq=False)
class Gift:
    """One transfer. `blocks` are the prompt's, growing while it is computed; the first `announced` were named."""

    transfer_id: str
    peer: str
    slot: int
    epoch: int
    state: Giving = Giving.COMPUTING
    blocks: list[int] = field(default_factory=list)
    announced: int = 0
    held_since: float = 0.0
    deadline: float = 0.0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What a Handoff says of the sequence."""

    computed: int
    first_tokens: list[int]
    prompt_tokens: int
    cached_tokens: int
    seconds: float
    choices: list[int]
    logprobs: Logprobs | None = None
    drafts: list[list[int]] | None = None


class Giver:
    """Owns the epoch cells. Conservation: free slots + open gifts = EPOCH_SLOTS."""

    def __init__(self, storage: KVStorage, incarnation: str, lease: float = LEASE) -> None:
        self.storage, self.incarnation, self.lease = storage, incarnation, lease
        self.free_slots = deque(range(EPOCH_SLOTS))
        self.open: dict[str, Gift] = {}

    def begin(self, transfer_id: str, peer: str, have: int = 0) -> Gift | None:
        """Start a transfer of all but the first `have` blocks; None when every slot is taken."""
        if not self.free_slots:
            return None
        slot = self.free_slots.popleft()
        gift = Gift(transfer_id, peer, slot, int(self.storage.epochs[slot]), announced=have)
        self.open[transfer_id] = gift
        return gift

    def announce(self, gift: Gift, blocks: list[int]) -> ChunkReady | None:
        """The message for blocks that became final since the last call; `blocks` are all final ones so far."""
        first, fresh = self.take_fresh(gift, blocks)
        if not fresh:
            return None
        digests = self.storage.digests(fresh)
        return ChunkReady(self.incarnation, gift.peer, gift.transfer_id, gift.epoch, gift.slot, first, fresh, digests)

    def hold(self, gift: Gift, blocks: list[int], done: Prefilled, now: float) -> Handoff:
        """The prompt is computed: name the rest of its blocks and keep all of them under a lease."""
        first, fresh = self.take_fresh(gift, blocks)
        gift.state = move(GIVING_MOVES, gift.state, Giving.HELD)
        gift.blocks = list(blocks)
        gift.held_since, gift.deadline = now, now + self.lease
        return Handoff(
            self.incarnation,
            gift.peer,
            gift.transfer_id,
            gift.epoch,
            gift.slot,
            first,
            fresh,
            self.storage.digests(fresh),
            done.computed,
            done.first_tokens,
            done.prompt_tokens,
            done.cached_tokens,
            self.storage.layout.fingerprint(),
            done.seconds,
            done.choices,
            done.logprobs,
            done.drafts,
        )

    def take_fresh(self, gift: Gift, blocks: list[int]) -> tuple[int, list[int]]:
        first, fresh = gift.announced, blocks[gift.announced :]
        self.storage.publish(fresh)
        gift.announced += len(fresh)
        return first, fresh

    def renew(self, transfer_id: str, epoch: int, now: float) -> None:
        """Extend a lease, within its total. Unknown or stale ones are ignored."""
        gift = self.open.get(transfer_id)
        if gift is not None and gift.epoch == epoch and gift.state is Giving.HELD:
            gift.deadline = min(now + self.lease, gift.held_since + LEASE_TOTAL)

    def release(self, transfer_id: str, state: Giving, epoch: int | None = None) -> Gift | None:
        """End a transfer, whatever its state: bump the epoch, then give the gift with its held blocks to the caller,
        who returns them to the pool. None when it has ended before or the epoch is another one's (idempotent)."""
        gift = self.open.get(transfer_id)
        if gift is None or epoch not in (None, gift.epoch):
            return None
        gift.state = move(GIVING_MOVES, gift.state, state)
        self.storage.epochs[gift.slot] += 1
        del self.open[transfer_id]
        self.free_slots.append(gift.slot)
        return gift

    def expired(self, now: float) -> list[Gift]:
        """Held gifts whose lease has run out; release them."""
        return [gift for gift in self.open.values() if gift.state is Giving.HELD and gift.deadline <= now]
