# SPDX-License-Identifier: Apache-2.0
"""The decode side of handoffs: pull what is announced, believe nothing that does not check.

A block is accepted when its pull ended without an error, the peer's epoch cell, read after the data, still shows the
number that was announced, and the digest of the bytes here is the one the peer stated. A transfer ends only when no
copier can write to its blocks any more, also when it failed or was cancelled.
"""

from dataclasses import dataclass, field

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.transfer.connector import STALL, Connector, Done
from pontil.runtime.transfer.states import TAKING_MOVES, Taking, move
from pontil.runtime.wire.messages import ChunkReady, Handoff


@dataclass(frozen=True, slots=True)
class Pull:
    """Blocks on their way: ours, and the digests they must have."""

    blocks: list[int]
    digests: list[int]


@dataclass(slots=True, eq=False)
class Take:
    """One transfer of a prompt of `expected` blocks. The first `announced` were announced so far, or are here already
    from an earlier prompt. With `error` it fails once nothing is pending."""

    transfer_id: str
    peer: str
    expected: int
    state: Taking = Taking.RESERVED
    epoch: int = 0
    slot: int = 0
    announced: int = 0
    pending: dict[int, Pull] = field(default_factory=dict)
    handoff: Handoff | None = None
    error: str | None = None
    last_progress: float = 0.0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def ended(self) -> bool:
        return not TAKING_MOVES[self.state]


class Taker:
    """Owns the transfers that are not over. The engine's thread calls everything."""

    def __init__(self, connector: Connector, storage: KVStorage) -> None:
        self.connector, self.storage = connector, storage
        self.open: dict[str, Take] = {}
        self.by_ticket: dict[int, Take] = {}

    def begin(self, transfer_id: str, peer: str, expected: int, have: int = 0) -> Take:
        take = self.open[transfer_id] = Take(transfer_id, peer, expected, announced=have)
        return take

    def announced(self, take: Take, message: ChunkReady | Handoff, ours: list[int], now: float) -> None:
        """Start pulling the message's blocks into `ours`, one for each. A message that contradicts an earlier one, or
        is not about the next blocks, fails the transfer."""
        if take.state is Taking.RESERVED:
            take.state = move(TAKING_MOVES, take.state, Taking.PULLING)
            take.epoch, take.slot = message.epoch, message.slot
        contradiction = self.contradiction(take, message, ours)
        if contradiction:
            self.fail(take, contradiction)
            return
        take.announced += len(ours)
        take.last_progress = now
        if isinstance(message, Handoff):
            take.handoff = message
        if ours:
            ticket = self.connector.pull(take.peer, list(zip(message.block_ids, ours, strict=True)), take.slot)
            take.pending[ticket] = Pull(ours, message.digests)
            self.by_ticket[ticket] = take

    def contradiction(self, take: Take, message: ChunkReady | Handoff, ours: list[int]) -> str | None:
        if (message.epoch, message.slot) != (take.epoch, take.slot):
            return "the peer changed the epoch of the transfer"
        if message.first != take.announced or not len(message.block_ids) == len(message.digests) == len(ours):
            return "the peer announced blocks out of order"
        if isinstance(message, Handoff):
            if message.kv_fingerprint != self.storage.layout.fingerprint():
                return "the peer's blocks have another layout"
            if take.announced + len(ours) != take.expected:
                return "the peer's handoff is not for this request"
        return None

    def fail(self, take: Take, error: str) -> None:
        """Give up on a transfer. It becomes FAILED when its last pull has ended."""
        take.error = take.error or error
        for ticket in take.pending:
            self.connector.cancel(ticket)

    def cancel(self, transfer_id: str) -> Take | None:
        """Nobody wants it any more: DRAINING, and CANCELLED when its last pull has ended. None if it is over."""
        take = self.open.get(transfer_id)
        if take is None or take.state is Taking.DRAINING:
            return None
        take.state = move(TAKING_MOVES, take.state, Taking.DRAINING)
        self.fail(take, "cancelled")
        return take

    def poll(self, now: float) -> list[Take]:
        """Transfers that ended since the last call: COMPLETE, FAILED or CANCELLED."""
        for done in self.connector.poll():
            self.finish_pull(done, now)
        for take in self.open.values():
            if take.pending and now - take.last_progress > STALL:
                self.fail(take, f"no bytes came for {STALL:.0f} s")
        ended = [take for take in self.open.values() if self.settle(take)]
        for take in ended:
            del self.open[take.transfer_id]
        return ended

    def finish_pull(self, done: Done, now: float) -> None:
        take = self.by_ticket.pop(done.ticket)
        pull = take.pending.pop(done.ticket)
        take.last_progress = now
        take.bytes += done.bytes
        take.seconds += done.seconds
        if take.error:
            return
        if done.error:
            self.fail(take, done.error)
        elif done.epoch != take.epoch:
            self.fail(take, "the peer reused the blocks before they were read")
        elif self.storage.digests(pull.blocks) != pull.digests:
            self.fail(take, "the blocks that arrived are not the ones that were sent")
        else:
            self.storage.receive(pull.blocks)

    def settle(self, take: Take) -> bool:
        """Move to the final state if nothing is pending."""
        if take.pending:
            return False
        if take.state is Taking.DRAINING:
            take.state = move(TAKING_MOVES, take.state, Taking.CANCELLED)
        elif take.error:
            take.state = move(TAKING_MOVES, take.state, Taking.FAILED)
        elif take.handoff:
            take.state = move(TAKING_MOVES, take.state, Taking.COMPLETE)
        return take.ended
