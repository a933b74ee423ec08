# SPDX-License-Identifier: Apache-2.0
"""The decode side of a worker: reserves room, requests the prompt's KV, pulls its blocks, and lets the engine decode
from there.

The KV receiver decides by its state table how a transfer ends; this side carries out its actions.
"""

import logging
import time
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from pontil.runtime.disaggregation.receiver import DRAIN_TIMEOUT, KVReceiver, ReceiveTransfer
from pontil.runtime.disaggregation.states import ReceiveEvent
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence
from pontil.runtime.errors import TransferError
from pontil.runtime.wire.links.outbox import PATIENCE
from pontil.runtime.wire.messages import (
    Abandon,
    Begin,
    ChunkReady,
    Fetched,
    Greeting,
    Handoff,
    Message,
    Renew,
    Withdrawn,
)
from pontil.runtime.worker.generate.block_transfers import BlockTransfers
from pontil.runtime.worker.generate.handoff_check import is_for, is_kept, known_of, prompt_digest
from pontil.runtime.worker.generate.hidden_row import handed_state
from pontil.runtime.worker.links.log_fields import about
from pontil.runtime.worker.links.peer_connection import HandshakeState
from pontil.runtime.worker.links.peer_connections import PeerConnections
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.process.worker_request import PullOutcome, WorkerRequest
from pontil.runtime.worker.start.assembly import WorkerResources

logger = logging.getLogger("pontil.worker")

# The connections beyond which none is opened because a client named a peer.
MOST_PEERS = 256


def by_order(request: WorkerRequest) -> tuple[int, int, int]:
    return request.sequence.order


@dataclass(slots=True, eq=False)
class Parked:
    """A sequence whose KV blocks are being transferred."""

    request: WorkerRequest
    transfer: ReceiveTransfer
    renew_at: float


@dataclass(slots=True)
class TransferCounts:
    """Cumulative outcomes of the transfers. Requests that ended on the prefill side are not counted."""

    complete: int = 0
    failed: int = 0
    cancelled: int = 0
    bytes: int = 0


@dataclass(slots=True)
class DecodeSide:
    """The requests that this worker decodes and the transfers of their KV. Requests that fail here are put into
    `failed` with the reason, and the worker tells the proxy; those that are over are put into `over`. Those
    `going_on` here have so many choices left: others ended where the prompt was computed. The requests
    `waiting` for room are also in the scheduler's queue, which decides their order. One that is to be computed here
    after all is if it `may_compute`, and else when the worker says so."""

    sockets: WorkerSockets
    machine: WorkerResources
    transfers: BlockTransfers
    may_compute: Callable[[WorkerRequest], bool] = lambda request: True
    kv_receiver: KVReceiver = field(init=False)
    peers: PeerConnections = field(init=False)
    waiting: list[WorkerRequest] = field(default_factory=list)
    parked: dict[str, Parked] = field(default_factory=dict)
    draining: dict[str, list[int]] = field(default_factory=dict)
    failed: list[tuple[WorkerRequest, str]] = field(default_factory=list)
    over: list[WorkerRequest] = field(default_factory=list)
    going_on: list[tuple[WorkerRequest, int]] = field(default_factory=list)
    counts: TransferCounts = field(default_factory=TransferCounts)

    def __post_init__(self) -> None:
        deadlines, transfers = self.sockets.config.deadlines, self.transfers
        self.kv_receiver = KVReceiver(transfers.connector, transfers.pools, self, deadlines)
        self.peers = PeerConnections(self.sockets, transfers.connector, transfers.greeting)

    def submitted(self, request: WorkerRequest, now: float) -> None:
        peer, endpoint = request.submit.peer, request.submit.peer_endpoint
        if peer is None or endpoint is None:
            self.failed.append((request, "the request names no prefill worker"))
            return
        reason = self.objection(request, peer, endpoint) if request.claims else None
        reason = reason or self.peers.open(peer, endpoint, now)
        if reason and request.claims:
            self.give_up(request, reason)
            return
        if reason:
            self.failed.append((request, reason))
            return
        insort(self.waiting, request, key=by_order)
        self.machine.engine.park(request.sequence, RemotePrompt(self, request))

    def objection(self, request: WorkerRequest, peer: str, endpoint: str) -> str | None:
        """Return why a prompt cannot be claimed of this peer. Both were named by a client: neither another transfer nor
        a connection that is in use may suffer from it, nor may connections collect."""
        transfer_id = request.submit.transfer_id
        open_ids = {*self.kv_receiver.open, *self.draining, *(one.submit.transfer_id for one in self.waiting)}
        if transfer_id in open_ids:
            return "the prompt is claimed by another request already"
        used = {one.submit.peer for one in self.waiting} | {one.peer for one in self.kv_receiver.open.values()}
        self.peers.forget_unused(used, MOST_PEERS)
        if peer in self.peers:
            return None
        if any(one.endpoint == endpoint and name in used for name, one in self.peers.items()):
            return "another worker has the address of the one that is to have kept the prompt"
        return None if len(self.peers) < MOST_PEERS else "this worker is connected to too many others"

    def give_up(self, request: WorkerRequest, reason: str) -> None:
        """Let a request whose claim failed be computed here like any other."""
        logger.warning("a kept prompt cannot be had (%s): it is computed here", reason, extra=about(request.submit))
        self.counts.failed += 1
        request.pulled = PullOutcome(0, 0.0, reason)
        self.compute_here(request)

    def compute_here(self, request: WorkerRequest, handoff: Handoff | None = None, arrived: int = 0) -> None:
        """Have a request computed here, behind the `handoff` that was checked, if there is one, with what `arrived` of
        its KV. It waits for its adapter as one that has just come does, and holds nothing meanwhile."""
        sequence, claims = request.sequence, request.claims
        request.handed = None if handoff is None or claims else known_of(handoff, request)
        request.submit = replace(request.submit, phase="whole", transfer_id=None, transfer_secret=None, peer=None)
        self.machine.engine.take_back(sequence, 0 if handoff is None else len(sequence.prompt), arrived)
        if self.may_compute(request):
            self.machine.engine.add(sequence, request.known)

    def admit(self) -> None:
        """Let the scheduler admit waiting requests in its order, and fail those whose peer has failed."""
        self.fail_waiting()
        if self.waiting:
            self.machine.scheduler.admit(in_step=False)

    def fail_waiting(self) -> None:
        """Fail the waiting requests whose peer has failed or is lost."""
        failed = self.peers.failed if self.waiting else {}
        for request in [request for request in self.waiting if request.submit.peer in failed] if failed else ():
            self.waiting.remove(request)
            reason = failed[str(request.submit.peer)]
            if request.claims:
                self.give_up(request, reason)
                continue
            self.machine.engine.end(request.key, FinishReason.ERROR)
            self.failed.append((request, reason))

    def begin(self, request: WorkerRequest) -> None:
        """Request the prompt's KV, now that there is room for it."""
        self.waiting.remove(request)
        connection, now = self.peers[str(request.submit.peer)], time.monotonic()
        transfer_id = str(request.submit.transfer_id)
        expected = self.machine.layout.blocks_for(len(request.sequence.prompt))
        have = request.sequence.computed // self.machine.layout.block_size
        transfer = self.kv_receiver.begin(
            transfer_id, connection.peer, expected, now, have, request.submit.transfer_secret, kept=request.claims
        )
        request.times.scheduled, request.times.pulls = now, transfer.pulls
        self.parked[transfer_id] = Parked(request, transfer, now + self.sockets.config.deadlines.renew_every)
        self.peers.tell(
            connection.peer,
            Begin(
                self.sockets.incarnation,
                connection.peer,
                transfer_id,
                request.request_id,
                request.attempt,
                have,
                self.machine.layout.ranks,
                self.transfers.connector.staged(connection.peer),
                prompt_digest(request.sequence.prompt, request.sequence.prefix.adapted) if request.claims else None,
            ),
        )

    def awaits_peer(self, request: WorkerRequest) -> bool:
        """Return whether a request waits for what another worker computes."""
        return str(request.submit.transfer_id) in self.parked or request in self.waiting

    def take(self, message: Message, now: float) -> None:
        """Handle a message from a prefill worker. Ignore one that is not about an open transfer with that worker."""
        if isinstance(message, Greeting):
            self.peers.greeted(message, self.machine.layout.ranks, now)
            self.admit()
        elif isinstance(message, ChunkReady | Handoff | Withdrawn):
            parked = self.parked.get(message.transfer_id)
            if parked is None or parked.transfer.peer != message.sender:
                return
            if isinstance(message, Withdrawn):
                self.withdrawn(parked, message, now)
            else:
                self.announced(parked, message, now)

    def announced(self, parked: Parked, message: ChunkReady | Handoff, now: float) -> None:
        """Bind blocks for the announced ones, and pull them."""
        transfer, sequence = parked.transfer, parked.request.sequence
        count = len(message.block_ids)
        if transfer.announced + count > transfer.expected:
            self.kv_receiver.fail(transfer, "the peer announced more blocks than the prompt has", now)
            return
        if isinstance(message, Handoff) and not self.fits(message, parked.request):
            self.kv_receiver.fail(transfer, "the peer's handoff is not for this request", now)
            return
        self.machine.scheduler.memory.grow(sequence, (transfer.announced + count) * self.machine.layout.block_size)
        ours = sequence.blocks[transfer.announced : transfer.announced + count]
        self.kv_receiver.announced(transfer, message, ours, now)

    def fits(self, handoff: Handoff, request: WorkerRequest) -> bool:
        if request.claims:
            return is_kept(handoff, request)
        return is_for(handoff, request, self.machine.config.vocab_size)

    def withdrawn(self, parked: Parked, message: Withdrawn, now: float) -> None:
        if message.finished and not parked.request.claims:
            self.kv_receiver.end(message.transfer_id, ReceiveEvent.FINISHED, now)
            self.over.append(parked.request)
        else:
            self.kv_receiver.fail(parked.transfer, f"the prefill worker withdrew: {message.reason}", now)

    def poll(self, now: float) -> None:
        """Carry out the results of the transfers."""
        self.kv_receiver.poll(now)

    def promote(self, transfer: ReceiveTransfer) -> None:
        request, handoff = self.parked.pop(transfer.transfer_id).request, transfer.handoff
        sequence = request.sequence
        assert handoff is not None
        sequence.history.admitted_elsewhere(handoff.cached_tokens)
        request.pulled = PullOutcome(transfer.bytes, transfer.seconds)
        self.going_on.append((request, len(handoff.choices)))
        resume_rows(sequence, handoff)
        if self.machine.adapters.has_in_memory(request.submit.adapter):
            known = None if request.claims else known_of(handoff, request, self.hidden_of(handoff))
            self.machine.engine.promote(sequence, handoff.computed, known)
        else:
            self.compute_here(request, handoff, handoff.computed)
        self.counts.complete += 1
        self.counts.bytes += transfer.bytes

    def hidden_of(self, handoff: Handoff) -> Tensor | None:
        """Return the state that came with a handoff, if this worker has a draft layer that goes on from it."""
        if not self.machine.engine.runner.keeps_states:
            return None
        return handed_state(handoff, self.machine.config.hidden_size, self.machine.storage.device)

    def go_on_without(self, transfer: ReceiveTransfer) -> None:
        """Handle a failed transfer: with the Handoff at hand the prompt is computed here, else the proxy is told."""
        request = self.parked.pop(transfer.transfer_id).request
        if request.claims:
            self.give_up(request, str(transfer.error))
            return
        self.counts.failed += 1
        request.pulled = PullOutcome(0, 0.0, transfer.error)
        if transfer.handoff is not None:
            logger.warning(
                "the handoff failed (%s): the prompt is computed here",
                transfer.error,
                extra=about(request.submit),
            )
            request.sequence.history.admitted_elsewhere(transfer.handoff.cached_tokens)
            self.going_on.append((request, len(transfer.handoff.choices)))
            resume_rows(request.sequence, transfer.handoff)
            self.compute_here(request, transfer.handoff)
        else:
            self.machine.engine.end(request.key, FinishReason.ERROR)
            self.failed.append((request, f"the handoff failed: {transfer.error}"))

    def cancel(self, request: WorkerRequest, now: float) -> None:
        if request in self.waiting:
            self.waiting.remove(request)
        if self.kv_receiver.end(str(request.submit.transfer_id), ReceiveEvent.CANCELLED, now) is None:
            self.machine.engine.end(request.key, FinishReason.ABORTED)
        else:
            self.counts.cancelled += 1

    def keep_blocks(self, transfer: ReceiveTransfer) -> None:
        """End the sequence, but keep its blocks until the copier, which may still write to them, has finished."""
        sequence = self.parked.pop(transfer.transfer_id).request.sequence
        self.draining[transfer.transfer_id], sequence.blocks = sequence.blocks, []
        self.machine.engine.end(sequence.id, FinishReason.ABORTED)

    def free_blocks(self, transfer: ReceiveTransfer) -> None:
        """Release the blocks: no copier writes to them any more."""
        drained = self.draining.pop(transfer.transfer_id, None)
        if drained is not None:
            self.machine.pool.release(drained)
        else:
            self.machine.scheduler.memory.give_back(self.parked[transfer.transfer_id].request.sequence)

    def send_fetched(self, transfer: ReceiveTransfer) -> None:
        word = Fetched(self.sockets.incarnation, transfer.peer, transfer.transfer_id, transfer.epoch)
        self.peers.tell_last(transfer.peer, word, time.monotonic())

    def send_abandon(self, transfer: ReceiveTransfer) -> None:
        word = Abandon(self.sockets.incarnation, transfer.peer, transfer.transfer_id, str(transfer.error))
        self.peers.tell_last(transfer.peer, word, time.monotonic())

    def stop_worker(self, transfer: ReceiveTransfer) -> None:
        """Raise TransferError to end this process: that ends the copier and frees its memory, and the supervisor starts
        another."""
        raise TransferError(
            f"a pull that was to end went on for {DRAIN_TIMEOUT:.0f} s: this worker stops rather than let go of memory "
            "that is being written to; see whether the network or the peer's host is stuck"
        )

    def tick(self, now: float) -> None:
        """Check handshake deadlines, renew leases, and fail the transfers of peers that ended. The KV receiver checks
        the deadlines of transfers. All of it depends on connections to peers."""
        if not self.peers.by_peer:
            return
        for peer in self.peers.flush(now):
            self.lose_peer(peer, now, f"the prefill worker took no message for {PATIENCE:.0f} s")
        # Before a peer that was lost for long is forgotten.
        self.fail_waiting()
        for peer in self.peers.tick(now):
            self.fail_transfers(peer, now, self.peers[peer].reason)
        for parked in self.parked.values():
            transfer = parked.transfer
            if transfer.handoff is not None and now >= parked.renew_at:
                parked.renew_at = now + self.sockets.config.deadlines.renew_every
                self.peers.tell(
                    transfer.peer, Renew(self.sockets.incarnation, transfer.peer, transfer.transfer_id, transfer.epoch)
                )
        for peer, reason in self.transfers.connector.unreachable().items():
            self.lose_peer(peer, now, reason)
        if self.waiting:
            self.admit()

    def lose_peer(self, peer: str, now: float, reason: str) -> None:
        """Handle the end of a prefill worker."""
        open_transfers = self.fail_transfers(peer, now, reason)
        connection = self.peers.get(peer)
        if connection is not None:
            connection.fail(reason)
        if not open_transfers and not any(request.submit.peer == peer for request in self.waiting):
            self.peers.hang_up(peer)

    def fail_transfers(self, peer: str, now: float, reason: str) -> list[ReceiveTransfer]:
        """Fail the transfers from a prefill worker that is gone or lost, and return all that are open. Blocks it had
        handed over can still be read; the rest will never come."""
        open_transfers = [transfer for transfer in self.kv_receiver.open.values() if transfer.peer == peer]
        for transfer in open_transfers:
            if transfer.handoff is None:
                self.kv_receiver.fail(transfer, reason, now)
        return open_transfers


def resume_rows(sequence: Sequence, handoff: Handoff) -> None:
    """Go on with the rows of a sequence that another stage drives."""
    if sequence.streams.inputs is not None:
        assert handoff.frames is not None and handoff.next_index is not None, "a handoff is checked when it arrives"
        sequence.streams.inputs.resume(handoff.frames, handoff.next_index)


@dataclass(frozen=True, slots=True, eq=False)
class RemotePrompt:
    """The scheduler's view of a request that waits for room."""

    side: DecodeSide
    request: WorkerRequest

    @property
    def draws_first(self) -> bool:
        return self.request.claims

    @property
    def is_ready(self) -> bool:
        return self.side.peers[str(self.request.submit.peer)].state is HandshakeState.READY

    def begin(self) -> None:
        self.side.begin(self.request)
