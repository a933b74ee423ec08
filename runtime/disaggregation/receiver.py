# SPDX-License-Identifier: Apache-2.0
"""The KV receiver, the decode side of handoffs: pulls announced blocks and verifies each of them.

A block is accepted when its pull ended without an error, the peer's epoch cell, read after the data, still shows the
announced number, and the digest of the bytes here is the one the peer stated. A transfer ends only when no copier can
write to its blocks any more, also when it failed or was cancelled.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pontil.runtime.config.worker_config import DEADLINES, Deadlines
from pontil.runtime.disaggregation.rank_pools import RankPools
from pontil.runtime.disaggregation.states import (
    RECEIVING,
    RECEIVING_ENDS,
    ReceiveAction,
    ReceiveEvent,
    ReceiveState,
    rule,
)
from pontil.runtime.timeline.work_times import PartTimes
from pontil.runtime.transfer.connector import REUSED, Connector, Pull
from pontil.runtime.transfer.grants import Grant
from pontil.runtime.wire.messages import ChunkReady, Handoff

# The longest time that a cancelled pull may take to end. Connectors promise far less.
DRAIN_TIMEOUT = 30.0
# Epoch cells, and epochs on the wire, have 64 bits.
LARGEST_EPOCH = (1 << 63) - 1


@dataclass(slots=True, eq=False, kw_only=True)
class BlockPull(Pull):
    """A pull of blocks of a transfer, and the digests that they must have, in the order (block, head group). It was
    announced at `begun`."""

    transfer: "ReceiveTransfer" = field(repr=False)
    digests: list[int]
    begun: float


@dataclass(slots=True, eq=False)
class ReceiveTransfer:
    """One transfer of a prompt of `expected` blocks. The first `announced` blocks have been announced, or are here
    already from an earlier prompt. It waits until `deadline`, for `patience` seconds. With `error` it fails once
    nothing is pending, which must be so at `ends_by`. Without an error, a peer that reused blocks before its Handoff
    has until then to say why: an answer may be complete with its first token. `ready` is the pull that the current
    event is about: one that is to be started, or has ended well. `pulls` has the times of those that ended, with blocks
    and bytes."""

    transfer_id: str
    peer: str
    expected: int
    deadline: float
    patience: float
    secret: str | None = field(default=None, repr=False)
    state: ReceiveState = ReceiveState.RESERVED
    epoch: int = 0
    slot: int = 0
    announced: int = 0
    ready: BlockPull | None = None
    pending: list[BlockPull] = field(default_factory=list)
    handoff: Handoff | None = None
    error: str | None = None
    last_progress: float = 0.0
    received: int = 0
    ends_by: float | None = None
    bytes: int = 0
    seconds: float = 0.0
    pulls: PartTimes = field(default_factory=PartTimes)

    @property
    def ended(self) -> bool:
        return self.state in RECEIVING_ENDS

    @property
    def shown(self) -> Grant | None:
        """The grant that the peer requires before it sends blocks across a network that has keys."""
        return None if self.secret is None else Grant(self.transfer_id, self.epoch, self.secret)


class ReceiverCallbacks(Protocol):
    """Actions of the KV receiver that need the engine or the peer; ReceiveAction says what each does."""

    def keep_blocks(self, transfer: ReceiveTransfer) -> None: ...
    def free_blocks(self, transfer: ReceiveTransfer) -> None: ...
    def promote(self, transfer: ReceiveTransfer) -> None: ...
    def go_on_without(self, transfer: ReceiveTransfer) -> None: ...
    def send_fetched(self, transfer: ReceiveTransfer) -> None: ...
    def send_abandon(self, transfer: ReceiveTransfer) -> None: ...
    def stop_worker(self, transfer: ReceiveTransfer) -> None: ...


class KVReceiver:
    """Owner of all open transfers. Not thread-safe: the engine's thread makes every call."""

    def __init__(
        self, connector: Connector, pools: RankPools, callbacks: ReceiverCallbacks, deadlines: Deadlines = DEADLINES
    ) -> None:
        self.connector, self.pools, self.deadlines = connector, pools, deadlines
        self.open: dict[str, ReceiveTransfer] = {}
        self.acts: dict[ReceiveAction, Callable[[ReceiveTransfer], None]] = {
            ReceiveAction.START_PULL: self.start_pull,
            ReceiveAction.CANCEL_PULLS: self.cancel_pulls,
            ReceiveAction.KEEP_BLOCKS: callbacks.keep_blocks,
            ReceiveAction.FREE_BLOCKS: callbacks.free_blocks,
            ReceiveAction.PROMOTE: callbacks.promote,
            ReceiveAction.GO_ON_WITHOUT: callbacks.go_on_without,
            ReceiveAction.SEND_FETCHED: callbacks.send_fetched,
            ReceiveAction.SEND_ABANDON: callbacks.send_abandon,
            ReceiveAction.STOP_WORKER: callbacks.stop_worker,
        }

    def begin(
        self,
        transfer_id: str,
        peer: str,
        expected: int,
        now: float,
        have: int = 0,
        secret: str | None = None,
        kept: bool = False,
    ) -> ReceiveTransfer:
        """Reserve a transfer. Of a prompt that is `kept` the peer has nothing to compute, so it must answer soon."""
        patience = self.deadlines.kv_stall_timeout if kept else self.deadlines.kv_transfer_timeout
        transfer = ReceiveTransfer(transfer_id, peer, expected, now + patience, patience, secret, announced=have)
        self.open[transfer_id] = transfer
        return transfer

    def happened(self, transfer: ReceiveTransfer, event: ReceiveEvent) -> None:
        """Apply an event by the table, and perform its actions. A transfer that has ended is removed before any action
        runs."""
        transfer.state, actions = rule(RECEIVING, transfer.state, event)
        if transfer.ended:
            del self.open[transfer.transfer_id]
        for action in actions:
            self.acts[action](transfer)

    def announced(self, transfer: ReceiveTransfer, message: ChunkReady | Handoff, ours: list[int], now: float) -> None:
        """Start pulling the message's blocks into `ours`, one for each. A message that contradicts an earlier one, or
        is not about the next blocks, fails the transfer."""
        if transfer.state is ReceiveState.RESERVED:
            transfer.epoch, transfer.slot = message.epoch, message.slot
        contradiction = transfer.error or self.contradiction(transfer, message, ours)
        if contradiction:
            self.fail(transfer, contradiction, now)
            return
        transfer.announced += len(ours)
        # The prompt advanced, so its time limit starts again.
        transfer.patience = self.deadlines.kv_transfer_timeout
        transfer.deadline = now + transfer.patience
        if isinstance(message, Handoff):
            transfer.handoff = message
        pairs = list(zip(message.block_ids, ours, strict=True))
        transfer.ready = BlockPull(
            transfer.peer, pairs, transfer.slot, transfer.shown, transfer=transfer, digests=message.digests, begun=now
        )
        self.happened(transfer, ReceiveEvent.ANNOUNCED)

    def contradiction(self, transfer: ReceiveTransfer, message: ChunkReady | Handoff, ours: list[int]) -> str | None:
        if not 0 <= message.epoch <= LARGEST_EPOCH:
            return "the peer's epoch is none"
        if (message.epoch, message.slot) != (transfer.epoch, transfer.slot):
            return "the peer changed the epoch of the transfer"
        if message.first != transfer.announced or len(message.block_ids) != len(ours):
            return "the peer announced blocks out of order"
        if transfer.handoff is not None:
            return "the peer announced blocks after its handoff"
        if isinstance(message, Handoff):
            if transfer.ends_by is not None:
                return REUSED
            if message.kv_fingerprint != self.pools.fingerprint:
                return "the peer's blocks have another layout"
            if transfer.announced + len(ours) != transfer.expected:
                return "the peer's handoff is not for this request"
        return None

    def fail(self, transfer: ReceiveTransfer, error: str, now: float) -> None:
        """Fail a transfer. It becomes FAILED when its last pull has ended. Only the first error is kept."""
        if transfer.error is None:
            transfer.error, transfer.ends_by = error, now + DRAIN_TIMEOUT
            self.happened(transfer, ReceiveEvent.FAULT)

    def end(self, transfer_id: str, event: ReceiveEvent, now: float) -> ReceiveTransfer | None:
        """Apply CANCELLED or FINISHED: the transfer is DRAINING, and CANCELLED when its last pull has ended. Return
        None if it has ended before."""
        transfer = self.open.get(transfer_id)
        if transfer is None or transfer.state is ReceiveState.DRAINING:
            return None
        if transfer.error is None:
            transfer.error, transfer.ends_by = "cancelled", now + DRAIN_TIMEOUT
        self.happened(transfer, event)
        return transfer

    def poll(self, now: float) -> None:
        """Handle the pulls that ended and the deadlines that passed."""
        for pull in self.connector.poll():
            if isinstance(pull, BlockPull):
                self.finish_pull(pull, now)
        for transfer in list(self.open.values()):
            self.watch(transfer, now)
            self.settle(transfer)

    def watch(self, transfer: ReceiveTransfer, now: float) -> None:
        """Check the deadlines: of the whole transfer, of silence while announced blocks are outstanding, of cancelled
        pulls."""
        is_late = transfer.ends_by is not None and now >= transfer.ends_by
        if transfer.error is not None:
            if transfer.pending and is_late:
                self.happened(transfer, ReceiveEvent.STUCK)
        elif is_late:
            self.fail(transfer, REUSED, now)
        elif now >= transfer.deadline:
            self.fail(transfer, f"the handoff was not complete within {transfer.patience:g} s", now)
        elif transfer.pending:
            progress = transfer.pending[0].received
            if progress != transfer.received:
                transfer.received, transfer.last_progress = progress, now
            elif now - transfer.last_progress > self.deadlines.kv_stall_timeout:
                self.fail(transfer, f"no bytes came for {self.deadlines.kv_stall_timeout:g} s", now)

    def finish_pull(self, pull: BlockPull, now: float) -> None:
        """Handle the end of a pull. The end of one that has ended before is ignored."""
        transfer, result = pull.transfer, pull.end
        if pull not in transfer.pending:
            return
        transfer.pending.remove(pull)
        transfer.last_progress = now
        transfer.bytes += result.bytes
        transfer.seconds += result.seconds
        transfer.pulls.add(pull.begun, now, len(pull.pairs), result.bytes)
        if transfer.error is not None:
            return
        if result.error == REUSED or (result.error is None and result.epoch != transfer.epoch):
            self.reused(transfer, now)
        elif result.error:
            self.fail(transfer, result.error, now)
        elif result.digests != pull.digests:
            self.fail(transfer, "the blocks that arrived are not the ones that were sent", now)
        else:
            transfer.ready = pull
            self.happened(transfer, ReceiveEvent.ARRIVED)

    def reused(self, transfer: ReceiveTransfer, now: float) -> None:
        """Handle blocks that the peer reused before they were read: none of the transfer's are of use."""
        if transfer.handoff is not None:
            self.fail(transfer, REUSED, now)
        elif transfer.ends_by is None:
            transfer.ends_by = now + self.deadlines.kv_stall_timeout

    def settle(self, transfer: ReceiveTransfer) -> None:
        """End the transfer if no pull is pending and none will come."""
        if transfer.pending:
            return
        if transfer.state is ReceiveState.DRAINING:
            self.happened(transfer, ReceiveEvent.QUIET)
        elif transfer.error is not None:
            self.happened(transfer, ReceiveEvent.SPOILED)
        elif transfer.handoff is not None:
            self.happened(transfer, ReceiveEvent.WHOLE)

    def start_pull(self, transfer: ReceiveTransfer) -> None:
        pull = transfer.ready
        assert pull is not None
        if pull.pairs:
            self.connector.pull(pull)
            if not transfer.pending:
                transfer.last_progress, transfer.received = pull.begun, pull.received
            transfer.pending.append(pull)

    def cancel_pulls(self, transfer: ReceiveTransfer) -> None:
        for pull in transfer.pending:
            pull.cancel()
