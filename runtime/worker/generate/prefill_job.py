# SPDX-License-Identifier: Apache-2.0
"""A prompt that is being computed for a decode worker."""

from collections import abc
from dataclasses import dataclass, field

from pontil.runtime.disaggregation.sender import SendTransfer
from pontil.runtime.engine.engine import Output
from pontil.runtime.worker.process.worker_request import WorkerRequest


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
