# SPDX-License-Identifier: Apache-2.0
"""The pace of a worker: so slow is it beside others."""

from pontil.runtime.foundation.value import value


@value(frozen=True, slots=True)
class WorkerPace:
    """The pace of a worker: it takes so many times as long as the fastest, for the same `prompts` and for the same
    `steps` of answers. Beginning an answer there while it has none costs as much as `behind` prompt tokens."""

    prompts: float = 1.0
    steps: float = 1.0
    behind: float = 0.0

    @property
    def slowest(self) -> float:
        return max(self.prompts, self.steps)


FASTEST = WorkerPace()
