# SPDX-License-Identifier: Apache-2.0
"""The prompts that a worker computes for others, and those whose blocks it keeps for them."""

from collections import abc
from dataclasses import dataclass, field

from pontil.runtime.disaggregation.rank_pools import RankPools
from pontil.runtime.disaggregation.sender import SendTransfer
from pontil.runtime.disaggregation.states import SendState
from pontil.runtime.engine.engine import Output
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence
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

    def end(self, sent: SendTransfer) -> WorkerRequest | None:
        """Free the blocks of a transfer that ends. Return its request if that is over with it; else it failed before,
        and was told of."""
        job = self.of(sent.transfer_id)
        if job is None:
            self.machine.pool.release(sent.blocks)
            return self.held.pop(sent.transfer_id)
        del self.open[job.request.key]
        self.machine.engine.end(job.request.key, FinishReason.ABORTED)
        for first in job.firsts:
            self.machine.scheduler.memory.give_back(first.sequence)
        return job.request if sent.state is SendState.RELEASED else None
