# SPDX-License-Identifier: Apache-2.0
"""Prompts that were computed before any decode worker is known, and are kept until one claims them.

A router that is not ours asks one worker for the prompt and another one for the answer, one after the other. The first
request is answered as any other, and its blocks stay under a lease. The claim that comes with the second one names the
transfer and the prompt: exactly one claim of the right prompt is granted, and from then on the transfer is like that of
every handoff.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pontil.runtime.cache.head_groups import can_divide
from pontil.runtime.disaggregation.sender import PrefillResult
from pontil.runtime.disaggregation.states import SendState
from pontil.runtime.wire.messages import Begin
from pontil.runtime.worker.generate.handoff_check import prompt_digest
from pontil.runtime.worker.generate.prefill_job import PrefillJob
from pontil.runtime.worker.process.worker_request import WorkerRequest

if TYPE_CHECKING:
    from pontil.runtime.worker.generate.prefill import PrefillSide


@dataclass(slots=True, eq=False)
class KeptPrompts:
    """The kept prompts of a prefill side, with their results by transfer."""

    side: "PrefillSide"
    results: dict[str, PrefillResult] = field(default_factory=dict)

    def submitted(self, request: WorkerRequest, now: float) -> None:
        """Compute a request whose prompt is to be kept. Without room for another transfer nothing is kept."""
        submit, side = request.submit, self.side
        sent = side.kv_sender.begin(str(submit.transfer_id), None, now, secret=submit.transfer_secret)
        if sent is None:
            request.sequence.hands_over = False
        else:
            side.jobs[request.key] = PrefillJob(request, sent, now, request.sequence.choices)
        side.machine.engine.add(request.sequence, request.known)

    def keep(self, job: PrefillJob, now: float) -> None:
        """Keep the blocks of a computed prompt. Its request is over: it has its whole answer."""
        sequence = job.firsts[0].sequence
        prompt, taken = len(sequence.prompt), now - job.begun
        self.results = {key: one for key, one in self.results.items() if key in self.side.kv_sender.open}
        self.results[job.sent.transfer_id] = PrefillResult(prompt, [], prompt, job.request.cached, taken, [])
        self.side.kv_sender.keep(job.sent, self.side.close(job, sequence), now)
        self.side.over.append(job.request)

    def claimed(self, begin: Begin, now: float) -> None:
        """Hand a kept prompt over to the worker that claims it, or refuse."""
        sent = self.side.kv_sender.open.get(begin.transfer_id)
        if sent is None or sent.state is not SendState.KEPT:
            self.side.refuse(begin, "no prompt is kept for this claim: it was claimed before, or its time ran out")
            return
        if reason := self.objection(begin, self.side.held[begin.transfer_id].sequence.prompt):
            self.side.refuse(begin, reason)
            return
        done = self.results.pop(begin.transfer_id)
        self.side.kv_sender.claim(sent, begin.sender, begin.have, begin.ranks, begin.staged, done, now)

    def objection(self, begin: Begin, prompt: list[int]) -> str | None:
        layout = self.side.machine.layout
        if begin.prompt_digest != prompt_digest(prompt):
            return "the prompt that is kept is another one"
        if not 0 <= begin.have <= len(prompt) // layout.block_size:
            return "the prompt does not have so many blocks"
        if not can_divide(layout.num_kv_heads, begin.ranks):
            return f"so many ranks ({begin.ranks}) cannot hold the model's KV heads"
        return None
