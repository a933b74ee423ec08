# SPDX-License-Identifier: Apache-2.0
"""The prompts that a worker computes for others, and those whose blocks it keeps for them."""

from collections import abc
from dataclasses import dataclass, field

from pontil.runtime.cache.storage import EPOCH_SLOTS
from pontil.runtime.disaggregation.rank_pools import RankPools
from pontil.runtime.disaggregation.sender import KVSender, PrefillResult, SendTransfer
from pontil.runtime.disaggregation.states import SendState
from pontil.runtime.engine.engine import Output
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.sequence import FinishReason, Purpose, Sequence
from pontil.runtime.wire.messages import Begin
from pontil.runtime.worker.generate.handoff_check import objection_to, prompt_digest
from pontil.runtime.worker.process.worker_request import WorkerRequest
from pontil.runtime.worker.start.assembly import WorkerResources


@dataclass(slots=True)
class PrefillJob:
    """A prompt being computed for a decode worker. `firsts` are the outputs of those `choices` that have their first
    token."""

    request: WorkerRequest
    sent: SendTransfer
    begun: float
    choices: abc.Sequence[int]
    firsts: list[Output] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.firsts) == len(self.choices)


@dataclass(slots=True)
class PrefillJobs:
    """The prompts being computed, by their request's key, and the requests of those that are `held`, by transfer. The
    blocks of a prompt that is computed are the engine's, of one that is held its transfer's."""

    machine: WorkerResources
    pools: RankPools
    open: dict[str, PrefillJob] = field(default_factory=dict)
    held: dict[str, WorkerRequest] = field(default_factory=dict)

    def begin(self, request: WorkerRequest, sent: SendTransfer, now: float, known: list[Known] | None = None) -> None:
        """Have a prompt computed."""
        self.open[request.key] = PrefillJob(request, sent, now, request.sequence.choices)
        self.machine.engine.add(request.sequence, known)

    def of(self, transfer_id: str) -> PrefillJob | None:
        """Return the job of a transfer, if its prompt is being computed."""
        return next((job for job in self.open.values() if job.sent.transfer_id == transfer_id), None)

    def request_of(self, transfer_id: str) -> WorkerRequest:
        job = self.of(transfer_id)
        return self.held[transfer_id] if job is None else job.request

    def hold(self, job: PrefillJob, sequence: Sequence) -> list[int]:
        """End the job of a computed prompt, whose blocks are returned. The choices share their blocks, so one of them
        holds these for all."""
        for first in job.firsts:
            if first.sequence is not sequence:
                self.machine.scheduler.memory.give_back(first.sequence)
        filled = sequence.computed % self.machine.layout.block_size
        if filled:
            # A block is hashed and sent whole: data that an earlier owner left after the prompt must not be sent.
            self.pools.clear_tail(sequence.blocks[-1], filled)
        del self.open[job.request.key]
        self.held[job.sent.transfer_id] = job.request
        return sequence.blocks

    def end(self, sent: SendTransfer, now: float) -> WorkerRequest | None:
        """Free the blocks of a transfer that ends. Return its request if that is over with it; else it failed before,
        and was told of."""
        job = self.of(sent.transfer_id)
        if job is None:
            self.machine.pool.release(sent.blocks)
            request = self.held.pop(sent.transfer_id)
            request.times.released = now
            return request
        del self.open[job.request.key]
        self.machine.engine.end(job.request.key, FinishReason.ABORTED)
        for first in job.firsts:
            self.machine.scheduler.memory.give_back(first.sequence)
        return job.request if sent.state is SendState.RELEASED else None


# The part of a worker's blocks and slots that unclaimed prompts may hold: who claims none must not have all of them.
KEPT_PART = 0.5


@dataclass(slots=True, eq=False)
class KeptPrompts:
    """The kept prompts of a prefill side, with their callers and numbers of blocks, and their results, by transfer."""

    kv_sender: KVSender
    jobs: PrefillJobs
    sizes: dict[str, tuple[str, int]] = field(default_factory=dict)
    results: dict[str, PrefillResult] = field(default_factory=dict)

    def submitted(self, request: WorkerRequest, now: float) -> None:
        """Compute a request whose prompt is to be kept. Without room for another transfer, or for its blocks among
        those of unclaimed prompts, nothing is kept."""
        submit, sent = request.submit, None
        if self.has_room(request):
            sent = self.kv_sender.begin(str(submit.transfer_id), None, now, secret=submit.transfer_secret)
        if sent is None:
            request.sequence.purpose = Purpose.ANSWER
            self.jobs.machine.engine.add(request.sequence, request.known)
        else:
            self.sizes[sent.transfer_id] = submit.caller, self.size(request)
            self.jobs.begin(request, sent, now, request.known)

    def size(self, request: WorkerRequest) -> int:
        return self.jobs.machine.layout.blocks_for(len(request.sequence.prompt))

    def has_room(self, request: WorkerRequest) -> bool:
        """Return whether the unclaimed prompts of this one's caller, with it, hold no more blocks and slots than are
        then left for those of others."""
        unclaimed = {key for key, sent in self.kv_sender.open.items() if sent.peer is None}
        self.sizes = {key: size for key, size in self.sizes.items() if key in unclaimed}
        size, held = self.size(request), [size for _, size in self.sizes.values()]
        own = [size for caller, size in self.sizes.values() if caller == request.submit.caller]
        blocks_left = KEPT_PART * self.jobs.machine.pool.capacity - sum(held) - size
        slots_left = KEPT_PART * EPOCH_SLOTS - len(held) - 1
        return sum(own) + size <= blocks_left and len(own) + 1 <= slots_left

    def keep(self, job: PrefillJob, now: float) -> None:
        """Keep the blocks of a computed prompt, whose request has its whole answer."""
        sequence = job.firsts[0].sequence
        prompt, taken = len(sequence.prompt), now - job.begun
        self.results = {key: one for key, one in self.results.items() if key in self.kv_sender.open}
        self.results[job.sent.transfer_id] = PrefillResult(prompt, [], prompt, job.request.cached, taken, [])
        self.kv_sender.keep(job.sent, self.jobs.hold(job, sequence), now)

    def claimed(self, begin: Begin, now: float) -> str | None:
        """Hand a kept prompt over to the worker that claims it, or return why not."""
        sent = self.kv_sender.open.get(begin.transfer_id)
        if sent is None or sent.state is not SendState.KEPT:
            return "no prompt is kept for this claim: it was claimed before, or its time ran out"
        reason = self.objection(begin, self.jobs.held[begin.transfer_id].sequence)
        if reason is None:
            done = self.results.pop(begin.transfer_id)
            self.kv_sender.claim(sent, begin.sender, begin.have, begin.ranks, begin.staged, done, now)
        return reason

    def objection(self, begin: Begin, sequence: Sequence) -> str | None:
        if begin.prompt_digest != prompt_digest(sequence.prompt, sequence.prefix.adapted):
            return "the prompt that is kept is another one"
        return objection_to(begin, sequence.prompt, self.jobs.machine.layout)
