# SPDX-License-Identifier: Apache-2.0
"""Prompts that were computed before any decode worker is known, and are kept until one claims them.

A router that is not ours asks one worker for the prompt and another one for the answer, one after the other. The first
request is answered as any other, and its blocks stay under a lease. The claim that comes with the second one names the
transfer and the prompt: exactly one claim of the right prompt is granted, and from then on the transfer is like that of
every handoff.
"""

from dataclasses import dataclass, field

from pontil.runtime.disaggregation.sender import KVSender, PrefillResult
from pontil.runtime.disaggregation.states import SendState
from pontil.runtime.engine.sequences.sequence import Purpose
from pontil.runtime.wire.messages import Begin
from pontil.runtime.worker.generate.handoff_check import objection_to, prompt_digest
from pontil.runtime.worker.generate.prefill_jobs import PrefillJob, PrefillJobs
from pontil.runtime.worker.process.worker_request import WorkerRequest


@dataclass(slots=True, eq=False)
class KeptPrompts:
    """The kept prompts of a prefill side, with their results by transfer."""

    kv_sender: KVSender
    jobs: PrefillJobs
    results: dict[str, PrefillResult] = field(default_factory=dict)

    def submitted(self, request: WorkerRequest, now: float) -> None:
        """Compute a request whose prompt is to be kept. Without room for another transfer nothing is kept."""
        submit = request.submit
        sent = self.kv_sender.begin(str(submit.transfer_id), None, now, secret=submit.transfer_secret)
        if sent is None:
            request.sequence.purpose = Purpose.ANSWER
            self.jobs.machine.engine.add(request.sequence, request.known)
        else:
            self.jobs.begin(request, sent, now, request.known)

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
        reason = self.objection(begin, self.jobs.held[begin.transfer_id].sequence.prompt)
        if reason is None:
            done = self.results.pop(begin.transfer_id)
            self.kv_sender.claim(sent, begin.sender, begin.have, begin.ranks, begin.staged, done, now)
        return reason

    def objection(self, begin: Begin, prompt: list[int]) -> str | None:
        if begin.prompt_digest != prompt_digest(prompt):
            return "the prompt that is kept is another one"
        return objection_to(begin, prompt, self.jobs.machine.layout)
