# SPDX-License-Identifier: Apache-2.0
"""The KV sender, the prefill side of handoffs: the blocks promised to each peer, their epoch and their lease.

Blocks are announced once all ranks have digested them: for a worker of one rank that is at once.

A reservation slot has one epoch cell in the shared memory. The cell is bumped before the blocks of its reservation
return to the pool, whatever the reason, so that a peer that read them too late sees another number than it was told. No
two reservations of a process have the same epoch, not even in different slots: a message about one that has ended
cannot be taken for a later transfer with the same id.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pontil.runtime.cache.storage import EPOCH_SLOTS
from pontil.runtime.config.worker_config import DEADLINES, Deadlines
from pontil.runtime.disaggregation.rank_pools import Publication, RankPools
from pontil.runtime.disaggregation.states import SENDING, SENDING_ENDS, SendAction, SendEvent, SendState, rule
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.grants import Grant
from pontil.runtime.wire.messages import ChunkReady, Handoff, Logprobs


@dataclass(slots=True, eq=False)
class SendTransfer:
    """One transfer to a peer of so many `ranks`; None is the peer of a prompt that was not claimed yet. `blocks` are
    the prompt's once it is computed; the first `announced` of them have been announced, or are about to be. At
    `deadline` the transfer ends in any case. `reason` says why it failed, if it did. `staged`: the peer reads host
    memory, in which the `published` blocks are."""

    transfer_id: str
    peer: str | None
    slot: int
    epoch: int
    deadline: float
    state: SendState = SendState.COMPUTING
    blocks: list[int] = field(default_factory=list)
    announced: int = 0
    held_since: float = 0.0
    reason: str = ""
    ranks: int = 1
    staged: bool = True
    published: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """The result of a prefill, as a Handoff carries it. On a device its blocks are final at `mark`, if it has one."""

    computed: int
    first_tokens: list[int]
    prompt_tokens: int
    cached_tokens: int
    seconds: float
    choices: list[int]
    logprobs: Logprobs | None = None
    drafts: list[list[int]] | None = None
    frames: list[list[int]] | None = None
    next_index: int | None = None
    hidden_state: bytes | None = None
    hidden_digest: str | None = None
    mark: Any = None
    top_logits: list[bytes] | None = None


@dataclass(frozen=True, slots=True)
class PendingAnnouncement:
    """A message that lacks the digests of its blocks as long as ranks owe some."""

    sent: SendTransfer
    message: ChunkReady | Handoff
    publication: Publication


class SenderCallbacks(Protocol):
    """Actions of the KV sender that need the engine or the peer."""

    def announce_blocks(self, message: ChunkReady | Handoff) -> None:
        """Tell the peer which blocks it can pull."""

    def free_blocks(self, sent: SendTransfer) -> None:
        """Return the blocks of a transfer to the pool; while the prompt is being computed they are the engine's."""

    def withdraw(self, sent: SendTransfer, finished: bool) -> None:
        """Tell the peer that no handoff will come."""


class KVSender:
    """Owner of the epoch cells and of all open transfers. Conservation: free slots + open transfers = EPOCH_SLOTS.

    A prompt of which no further block is computed within `kv_transfer_timeout` is useless: the decode side does not
    wait longer. No lease is renewed beyond that either.
    """

    def __init__(
        self, pools: RankPools, incarnation: str, callbacks: SenderCallbacks, deadlines: Deadlines = DEADLINES
    ) -> None:
        self.pools, self.incarnation, self.callbacks, self.deadlines = pools, incarnation, callbacks, deadlines
        self.free_slots = deque(range(EPOCH_SLOTS))
        self.last_epoch = int(pools.storage.epochs.max())
        # In the order in which they are to be sent.
        self.announcements: deque[PendingAnnouncement] = deque()
        self.open: dict[str, SendTransfer] = {}
        self.acts: dict[SendAction, Callable[[SendTransfer, float], None]] = {
            SendAction.START_LEASE: self.start_lease,
            SendAction.EXTEND_LEASE: self.extend_lease,
            SendAction.BUMP_EPOCH: self.bump_epoch,
            SendAction.FREE_BLOCKS: self.free_blocks,
            SendAction.FREE_SLOT: self.free_slot,
            SendAction.SEND_FINISHED: lambda transfer, now: callbacks.withdraw(transfer, True),
            SendAction.SEND_WITHDRAWN: lambda transfer, now: callbacks.withdraw(transfer, False),
        }

    def begin(
        self,
        transfer_id: str,
        peer: str | None,
        now: float,
        have: int = 0,
        secret: str | None = None,
        ranks: int = 1,
        staged: bool = True,
    ) -> SendTransfer | None:
        """Start a transfer of all but the first `have` blocks to a peer of so many ranks; without a peer, of a prompt
        that is kept until one claims it. Return None when every slot
        is taken, or a transfer with this id is open. With a `secret`, peers that have it may read its announced blocks
        across a network. A peer for which they are not `staged` opens our GPU's memory itself."""
        if not self.free_slots or transfer_id in self.open:
            return None
        slot = self.free_slots.popleft()
        deadline = now + self.deadlines.kv_transfer_timeout
        epoch = int(self.pools.storage.epochs[slot])
        state = SendState.PREPARING if peer is None else SendState.COMPUTING
        transfer = SendTransfer(
            transfer_id, peer, slot, epoch, deadline, state, announced=have, ranks=ranks, staged=staged
        )
        self.open[transfer_id] = transfer
        if secret is not None:
            self.pools.open_grant(Grant(transfer_id, transfer.epoch, secret), slot)
        return transfer

    def announce(self, transfer: SendTransfer, blocks: list[int], now: float) -> None:
        """Announce blocks that became final since the last call; `blocks` are all final ones so far. New blocks restart
        the time limit of the prompt. Without a peer there is nobody to tell."""
        first, fresh = transfer.announced, blocks[transfer.announced :]
        if fresh:
            transfer.deadline = now + self.deadlines.kv_transfer_timeout
        if fresh and transfer.peer is None:
            transfer.announced = len(blocks)
        elif fresh:
            self.publish(transfer, ChunkReady(*self.addressed(transfer), first, fresh, []))

    def hold(self, transfer: SendTransfer, blocks: list[int], result: PrefillResult, now: float) -> None:
        """Announce the remaining blocks of a computed prompt and keep all of them under a lease."""
        self.keep(transfer, blocks, now)
        self.hand_over(transfer, result)

    def keep(self, transfer: SendTransfer, blocks: list[int], now: float) -> None:
        """Keep the blocks of a computed prompt under a lease."""
        transfer.blocks = list(blocks)
        self.happened(transfer, SendEvent.COMPUTED, now)

    def claim(
        self, transfer: SendTransfer, peer: str, have: int, ranks: int, staged: bool, result: PrefillResult, now: float
    ) -> None:
        """Hand a kept prompt over to the peer that claims it, as one that was computed for this peer."""
        transfer.peer, transfer.announced, transfer.ranks, transfer.staged = peer, have, ranks, staged
        self.happened(transfer, SendEvent.CLAIMED, now)
        self.hand_over(transfer, result)

    def addressed(self, transfer: SendTransfer) -> tuple[str, str, str, int, int]:
        """Return the fields with which each announcement begins."""
        return self.incarnation, peer_of(transfer), transfer.transfer_id, transfer.epoch, transfer.slot

    def hand_over(self, transfer: SendTransfer, result: PrefillResult) -> None:
        """Announce the blocks that were not announced yet, and the result."""
        first, fresh = transfer.announced, transfer.blocks[transfer.announced :]
        handoff = Handoff(
            *self.addressed(transfer),
            first,
            fresh,
            [],
            result.computed,
            result.first_tokens,
            result.prompt_tokens,
            result.cached_tokens,
            self.pools.fingerprint,
            result.seconds,
            result.choices,
            result.logprobs,
            result.drafts,
            result.frames,
            result.next_index,
            result.hidden_state,
            result.hidden_digest,
            result.top_logits,
        )
        self.publish(transfer, handoff, result.mark)

    def publish(self, transfer: SendTransfer, message: ChunkReady | Handoff, mark: Any = None) -> None:
        """Make the message's blocks readable, and send it when their digests are known."""
        self.pools.allow(transfer.transfer_id, message.block_ids)
        transfer.announced += len(message.block_ids)
        if transfer.staged:
            transfer.published += message.block_ids
        publication = self.pools.publish(message.block_ids, transfer.ranks, transfer.staged, mark)
        self.announcements.append(PendingAnnouncement(transfer, message, publication))
        self.flush()

    def flush(self) -> None:
        """Send the announcements whose digests are known, in their order. A transfer that has ended announces nothing.
        Raises TransferError if a rank's digests cannot be right: its driver can trust it no more."""
        while self.announcements:
            transfer, message = self.announcements[0].sent, self.announcements[0].message
            try:
                digests = self.announcements[0].publication.digests()
            except ValueError as error:
                raise TransferError(f"{error}: this worker stops, and starts again") from None
            if digests is None:
                return
            self.announcements.popleft()
            if transfer.state not in SENDING_ENDS:
                self.callbacks.announce_blocks(replace(message, digests=digests))

    def heard(self, transfer_id: str, epoch: int, event: SendEvent, now: float) -> None:
        """Handle a peer's message about a transfer. A message about one that has ended, or with another epoch, is stale
        and changes nothing."""
        transfer = self.open.get(transfer_id)
        if transfer is not None:
            self.happened(transfer, event if epoch == transfer.epoch else SendEvent.STALE, now)

    def release(self, transfer_id: str, event: SendEvent, now: float, reason: str = "") -> SendTransfer | None:
        """End a transfer in any state. Return None when it has ended before (idempotent)."""
        transfer = self.open.get(transfer_id)
        if transfer is not None:
            transfer.reason = reason
            self.happened(transfer, event, now)
        return transfer

    def happened(self, transfer: SendTransfer, event: SendEvent, now: float) -> None:
        """Apply an event by the table, and perform its actions. A transfer that has ended is removed before any action
        runs."""
        transfer.state, actions = rule(SENDING, transfer.state, event)
        if transfer.state in SENDING_ENDS:
            del self.open[transfer.transfer_id]
            self.pools.close_grant(transfer.transfer_id)
        for action in actions:
            self.acts[action](transfer, now)

    def late(self, now: float) -> list[SendTransfer]:
        """Return the transfers whose deadline has passed: the lease, or the time to compute."""
        return [transfer for transfer in self.open.values() if transfer.deadline <= now]

    def start_lease(self, transfer: SendTransfer, now: float) -> None:
        transfer.held_since, transfer.deadline = now, now + self.deadlines.kv_lease

    def extend_lease(self, transfer: SendTransfer, now: float) -> None:
        longest = transfer.held_since + self.deadlines.kv_transfer_timeout
        transfer.deadline = min(now + self.deadlines.kv_lease, longest)

    def free_blocks(self, transfer: SendTransfer, now: float) -> None:
        self.pools.forget(transfer.published)
        self.callbacks.free_blocks(transfer)

    def bump_epoch(self, transfer: SendTransfer, now: float) -> None:
        self.last_epoch += 1
        self.pools.set_epoch(transfer.slot, self.last_epoch)

    def free_slot(self, transfer: SendTransfer, now: float) -> None:
        self.free_slots.append(transfer.slot)


def peer_of(transfer: SendTransfer) -> str:
    assert transfer.peer is not None, "nothing is announced before a prompt is claimed"
    return transfer.peer
