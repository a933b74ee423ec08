# SPDX-License-Identifier: Apache-2.0
"""Regular checks of prompts without a first token: those that advance, and those that are past their deadline."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pontil.runtime.engine.sequences.sequence import SequenceState
from pontil.runtime.worker.process.worker_request import WorkerRequest

# Seconds from one check to the next.
LOOK_EVERY = 0.5


@dataclass(slots=True)
class PromptMonitor:
    """A monitor of prompts. `seen` has the number of computed tokens of each at the last check. The caller passes the
    time."""

    next_look: float = 0.0
    seen: dict[str, int] = field(default_factory=dict)

    def is_due(self, now: float) -> bool:
        due = now >= self.next_look
        if due:
            self.next_look = now + LOOK_EVERY
        return due

    def begun(self, requests: Iterable[WorkerRequest]) -> list[WorkerRequest]:
        """Return these requests, of whose prompts a first part was computed, as `advanced` will not before the next."""
        found = list(requests)
        self.seen |= {request.key: request.sequence.computed for request in found}
        return found

    def advanced(self, requests: Iterable[WorkerRequest]) -> list[WorkerRequest]:
        """Return the requests whose prompt is being computed and has advanced since the last check."""
        before, self.seen, found = self.seen, {}, list[WorkerRequest]()
        for request in requests:
            sequence = request.sequence
            if sequence.state is SequenceState.RUNNING and 0 < sequence.computed < len(sequence.prompt):
                self.seen[request.key] = sequence.computed
                if sequence.computed > before.get(request.key, 0):
                    found.append(request)
        return found


def is_late(request: WorkerRequest, now: float) -> bool:
    """Return whether the request has waited, for its turn or for room, past its deadline. A prompt that is being
    computed is never late here: its progress is reported, and the proxy knows whether the client still waits."""
    sequence, deadline = request.sequence, request.submit.deadline
    waits = sequence.state is SequenceState.WAITING and not sequence.history.admissions and not request.submit.delivered
    return waits and deadline is not None and now >= request.arrived + deadline
