# SPDX-License-Identifier: Apache-2.0
"""The prefill side of a worker: computes prompts for decode workers that have reserved room, and hands over their KV.

A prompt is computed only once both the proxy's Submit and the decode worker's Begin are here, in any order. Blocks that
were handed over stay in this pool, under a lease, until the decode worker sends Fetched. The KV sender decides by its
state table how a transfer ends; this side carries out its actions, and keeps the engine and the proxy informed.
"""

import time
from collections import abc
from dataclasses import dataclass, field, replace

from pontil.runtime.config.worker_config import Deadlines
from pontil.runtime.disaggregation.sender import KVSender, PrefillResult, SendTransfer, peer_of
from pontil.runtime.disaggregation.states import SendEvent
from pontil.runtime.engine.engine import Output
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence
from pontil.runtime.engine.sequences.token_logprobs import TokenLogprobs
from pontil.runtime.wire.compatibility import foreign, objection
from pontil.runtime.wire.links.outbox import PATIENCE, Outbox
from pontil.runtime.wire.links.sockets import PeerServer
from pontil.runtime.wire.messages import (
    SCHEMA,
    Abandon,
    Begin,
    ChunkReady,
    Fetched,
    Greet,
    Greeting,
    Handoff,
    Message,
    Renew,
    Withdrawn,
)
from pontil.runtime.worker.generate.block_transfers import BlockTransfers
from pontil.runtime.worker.generate.handoff_check import objection_to
from pontil.runtime.worker.generate.hidden_row import digest_of, last_state
from pontil.runtime.worker.generate.prefill_jobs import KeptPrompts, PrefillJob, PrefillJobs
from pontil.runtime.worker.links.peer_connection import WITHOUT_RANKS
from pontil.runtime.worker.process.worker_request import WorkerRequest
from pontil.runtime.worker.start.assembly import WorkerResources

# Transfers that decode workers asked for, and that the proxy has not submitted yet: a proxy tells both sides at once.
MOST_EARLY, LONGEST_ID = 4096, 512


@dataclass(slots=True)
class HalfTransfer:
    """A transfer that waits for the proxy's Submit, for the decode worker's Begin, or for both and then its adapter."""

    deadline: float
    request: WorkerRequest | None = None
    begin: Begin | None = None

    @property
    def is_whole(self) -> bool:
        """Return whether both have come, so that only the request's adapter is waited for."""
        return self.request is not None and self.begin is not None


@dataclass(slots=True)
class PrefillSide:
    """The prompts that this worker computes for others, driven by messages (`take`), time (`tick`) and the engine's
    progress (`announce`, `ended`).

    A prompt whose transfer is whole is computed if it `may_compute`, and else when the worker says so. Requests that
    fail here are put into `failed` with the reason, and the worker tells the proxy; those that are over are put into
    `over`.
    """

    incarnation: str
    deadlines: Deadlines
    machine: WorkerResources
    socket: PeerServer
    transfers: BlockTransfers
    may_compute: abc.Callable[[WorkerRequest], bool] = lambda request: True
    kv_sender: KVSender = field(init=False)
    jobs: PrefillJobs = field(init=False)
    kept: KeptPrompts = field(init=False)
    outbox: Outbox = field(init=False)
    halves: dict[str, HalfTransfer] = field(default_factory=dict)
    failed: list[tuple[WorkerRequest, str]] = field(default_factory=list)
    over: list[WorkerRequest] = field(default_factory=list)
    expired: int = 0

    def __post_init__(self) -> None:
        self.kv_sender = KVSender(self.transfers.pools, self.incarnation, self, self.deadlines)
        self.outbox = Outbox(lambda peer, message: self.socket.send(message))
        self.jobs = PrefillJobs(self.machine, self.transfers.pools)
        self.kept = KeptPrompts(self.kv_sender, self.jobs)

    def submitted(self, request: WorkerRequest, now: float) -> None:
        half = self.half(str(request.submit.transfer_id), now)
        half.request = request
        self.pair(str(request.submit.transfer_id), half, now)

    def take(self, message: Message, now: float) -> None:
        if isinstance(message, Greet):
            self.outbox.post(message.sender, self.answer(message))
        elif isinstance(message, Begin) and message.prompt_digest is not None:
            if reason := self.kept.claimed(message, now):
                self.refuse(message, reason)
        elif isinstance(message, Begin):
            if not has_room(self.halves, message.transfer_id):
                self.refuse(message, "too many transfers wait for the proxy")
                return
            half = self.half(message.transfer_id, now)
            if half.begin is None:
                half.begin = message
                self.pair(message.transfer_id, half, now)
        elif isinstance(message, Fetched | Renew | Abandon) and self.is_theirs(message):
            self.told(message, now)

    def is_theirs(self, message: Fetched | Renew | Abandon) -> bool:
        """Return whether a message about an open transfer comes from that transfer's receiver."""
        sent = self.kv_sender.open.get(message.transfer_id)
        return sent is None or sent.peer == message.sender

    def told(self, message: Fetched | Renew | Abandon, now: float) -> None:
        if isinstance(message, Abandon):
            self.drop(message.transfer_id, now)
        else:
            event = SendEvent.FETCHED if isinstance(message, Fetched) else SendEvent.RENEWED
            self.kv_sender.heard(message.transfer_id, message.epoch, event, now)

    def answer(self, greet: Greet) -> Greeting:
        """Answer a handshake. Blocks fit if protocol, model and layout are the same (C8)."""
        ours, ranks = replace(self.transfers.greeting, name="the prefill worker"), self.machine.layout.ranks
        reason = foreign(greet, ours.name, SCHEMA) or objection(greet, ours)
        if reason is None and ranks > 1 and greet.ranks is None:
            reason = f"{greet.name} is {WITHOUT_RANKS}"
        if reason is not None:
            return Greeting(self.incarnation, greet.sender, reason=reason)
        return Greeting(self.incarnation, greet.sender, pool=self.transfers.connector.register(), ranks=ranks)

    def half(self, transfer_id: str, now: float) -> HalfTransfer:
        return self.halves.setdefault(transfer_id, HalfTransfer(now + self.deadlines.first_byte_timeout))

    @property
    def halves_that_wait(self) -> int:
        """The number of transfers of which one side has not been heard."""
        return sum(not half.is_whole for half in self.halves.values())

    def awaits_peer(self, request: WorkerRequest) -> bool:
        """Return whether a request waits for a decode worker that has room."""
        half = self.halves.get(str(request.submit.transfer_id))
        return half is not None and not half.is_whole

    def pair(self, transfer_id: str, half: HalfTransfer, now: float) -> None:
        """Start computing once both messages have arrived."""
        request, begin = half.request, half.begin
        if request is None or begin is None:
            return
        if begin.sender != request.submit.peer:
            del self.halves[transfer_id]
            self.give_up(request, "the decode worker that asked for the prompt is not the one that was planned")
            return
        if reason := objection_to(begin, request.sequence.prompt, self.machine.layout):
            del self.halves[transfer_id]
            self.refuse(begin, reason)
            self.give_up(request, f"the decode worker asked for what it cannot have: {reason}")
            return
        if self.may_compute(request):
            self.compute(request, now)

    def compute(self, request: WorkerRequest, now: float) -> None:
        """Compute a prompt for which everything it waited for is here, unless its transfer was dropped meanwhile."""
        transfer_id, secret = str(request.submit.transfer_id), request.submit.transfer_secret
        half = self.halves.pop(transfer_id, None)
        if half is None or half.begin is None:
            return
        begin = half.begin
        sent = self.kv_sender.begin(transfer_id, begin.sender, now, begin.have, secret, begin.ranks, begin.staged)
        if sent is None:
            self.refuse(begin, "too many transfers are open")
            self.give_up(request, "the prefill worker has too many transfers open")
            return
        self.jobs.begin(request, sent, now)

    def announce(self, now: float) -> None:
        """Announce the blocks that the step completed."""
        for job in list(self.jobs.open.values()):
            sequence = job.request.sequence
            ready = sequence.computed // self.machine.layout.block_size
            if ready > job.sent.announced:
                self.kv_sender.announce(job.sent, sequence.blocks[:ready], now)

    def announce_blocks(self, message: ChunkReady | Handoff) -> None:
        self.outbox.post(message.receiver, message)

    def ended(self, output: Output, now: float) -> None:
        """Record a choice's first token. After the last one, hand the prompt over if any choice continues."""
        job = self.jobs.open[output.sequence.id]
        job.firsts.append(output)
        if not job.complete:
            return
        if job.request.is_held:
            self.kept.keep(job, now)
            self.over.append(job.request)
            return
        going_on = [first.sequence for first in job.firsts if first.finish is FinishReason.HANDED_OVER]
        if going_on:
            self.hand_over(job, going_on, now)
        else:
            self.kv_sender.release(job.sent.transfer_id, SendEvent.FINISHED, now, "finished")

    def hand_over(self, job: PrefillJob, going_on: list[Sequence], now: float) -> None:
        """Hand the prompt over to the decode worker, which does everything else."""
        done = prefilled(job, going_on, now, self.machine.scheduler)
        job.request.times.computed = now
        self.kv_sender.hold(job.sent, self.jobs.hold(job, going_on[0]), done, now)

    def break_off(self, request: WorkerRequest, now: float) -> None:
        """End a request with an error, of which the proxy was told; for the decode worker it counts as finished."""
        transfer_id = str(request.submit.transfer_id)
        self.kv_sender.release(transfer_id, SendEvent.FINISHED, now, "a choice cannot go on")

    def cancel(self, request: WorkerRequest, now: float) -> None:
        """Cancel a request in any state, at the proxy's demand."""
        transfer_id = str(request.submit.transfer_id)
        self.halves.pop(transfer_id, None)
        self.kv_sender.release(transfer_id, SendEvent.DROPPED, now, "cancelled")

    def drop(self, transfer_id: str, now: float) -> None:
        """Drop a transfer that the decode worker abandoned; that worker tells the proxy."""
        half = self.halves.pop(transfer_id, None)
        if half is not None and half.request is not None:
            self.give_up(half.request, "the decode worker abandoned the transfer")
        job = self.jobs.of(transfer_id)
        if job is not None:
            self.give_up(job.request, "the decode worker abandoned the transfer")
        self.kv_sender.release(transfer_id, SendEvent.DROPPED, now, "abandoned")

    def lose(self, peer: str, unsent: abc.Sequence[Message], now: float) -> None:
        """Give up on a decode worker that accepts no messages: prompts computed for it, or waiting to be handed over,
        are dropped. Blocks announced to it before may still be read; their lease covers that."""
        named = {message.transfer_id for message in unsent if isinstance(message, ChunkReady | Handoff)}
        for sent in [sent for sent in self.kv_sender.open.values() if sent.peer == peer]:
            if self.jobs.of(sent.transfer_id) is not None or sent.transfer_id in named:
                reason = f"the decode worker took no message for {PATIENCE:.0f} s"
                self.give_up(self.jobs.request_of(sent.transfer_id), reason)
                self.kv_sender.release(sent.transfer_id, SendEvent.DROPPED, now, "unreachable")

    def free_blocks(self, sent: SendTransfer) -> None:
        if request := self.jobs.end(sent, time.monotonic()):
            self.over.append(request)

    def withdraw(self, sent: SendTransfer, finished: bool) -> None:
        peer = peer_of(sent)
        self.outbox.post(peer, Withdrawn(self.incarnation, peer, sent.transfer_id, finished, sent.reason))

    def refuse(self, begin: Begin, reason: str) -> None:
        self.outbox.post(begin.sender, Withdrawn(self.incarnation, begin.sender, begin.transfer_id, False, reason))

    def tick(self, now: float) -> None:
        """Check the deadlines of transfers, of halves that wait for the other message, and of peers that accept
        none."""
        if not (self.outbox.backlogs or self.kv_sender.open or self.halves):
            return
        longest = self.deadlines.kv_transfer_timeout
        for peer, unsent in self.outbox.flush(now).items():
            self.lose(peer, unsent, now)
        for sent in self.kv_sender.late(now):
            job = self.jobs.of(sent.transfer_id)
            if job is not None:
                self.give_up(job.request, f"the prompt was not computed within {longest:g} s")
            self.kv_sender.release(sent.transfer_id, SendEvent.LATE, now, "the prefill worker's time for it ran out")
            self.expired += 1
        late = [transfer_id for transfer_id, half in self.halves.items() if half.deadline <= now]
        for transfer_id in late:
            half = self.halves.pop(transfer_id)
            if half.request is not None:
                waited = self.deadlines.first_byte_timeout
                what = "its adapter had no room" if half.is_whole else "no decode worker made room"
                self.give_up(half.request, f"{what} within {waited:g} s")
            if half.begin is not None:
                what = "its adapter had no room in time" if half.is_whole else "the proxy never submitted the request"
                self.refuse(half.begin, what)

    def give_up(self, request: WorkerRequest, reason: str) -> None:
        self.failed.append((request, reason))


def has_room(halves: abc.Mapping[str, HalfTransfer], transfer_id: str) -> bool:
    """Return whether a transfer that a decode worker asks for can be kept. Of those that the proxy has not submitted
    there is room for so many: their names are the peer's."""
    if transfer_id in halves:
        return True
    is_full = len(halves) >= MOST_EARLY and sum(half.request is None for half in halves.values()) >= MOST_EARLY
    return not is_full and len(transfer_id) <= LONGEST_ID


def prefilled(job: PrefillJob, going_on: list[Sequence], now: float, scheduler: Scheduler) -> PrefillResult:
    """Return the result of a computed prompt, for the Handoff."""
    sequence, n = going_on[0], going_on[0].params.n
    made = scheduler.drafts.drafter.hand_over(going_on, scheduler.drafts.most)
    drafts = {one.branch.choice: list(draft) for one, draft in zip(going_on, made, strict=True)}
    hidden = last_state(sequence)
    tokens = {first.sequence.branch.choice: first.sequence.output[0] for first in job.firsts}
    known = {first.sequence.branch.choice: first.logprobs[0] for first in job.firsts if first.logprobs}
    asked, unknown = sequence.params, TokenLogprobs()
    return PrefillResult(
        sequence.computed,
        [tokens[choice] if choice in tokens else job.request.submit.delivered[choice][0] for choice in range(n)],
        len(sequence.prompt),
        job.request.cached,
        now - job.begun,
        [one.branch.choice for one in going_on],
        [known.get(choice, unknown).to_wire() for choice in range(n)] if known and asked.logprobs is not None else None,
        [drafts.get(choice, []) for choice in range(n)] if any(drafts.values()) else None,
        None if sequence.streams.inputs is None else [sequence.streams.inputs.frames[0]],
        None if sequence.streams.inputs is None else sequence.streams.inputs.next_index,
        hidden,
        None if hidden is None else digest_of(hidden),
        sequence.history.mark,
        [known.get(choice, unknown).top_logits for choice in range(n)] if known and asked.top_logits else None,
    )
