# SPDX-License-Identifier: Apache-2.0
"""The record of what was computed of a sequence before, and of where its time went."""

from dataclasses import dataclass
from typing import Any

from pontil.runtime.timeline.work_times import WorkTimes


@dataclass(slots=True)
class ComputeHistory:
    """No position from `reached` on was computed before. Of the prompt, `prompt_computed` tokens were computed here for
    the first time, `cached` were found at the first of its `admissions`, and `cached_later` after a preemption beyond
    what it had reached. `scheduled_at` is when its prompt was first admitted here to be computed, in seconds of the
    scheduler's clock. `times` notes where its time goes, if anybody asks. `mark` is the moment on a device behind the
    step that ended it, if it is handed over and another step may be started before it is over."""

    admissions: int = 0
    scheduled_at: float | None = None
    reached: int = 0
    cached: int = 0
    cached_later: int = 0
    prompt_computed: int = 0
    times: WorkTimes | None = None
    mark: Any = None

    def admit(self, found: int, prompt: int, now: float) -> bool:
        """Note an admission to be computed from position `found` on, with a prompt of so many tokens. Return whether it
        is the first one."""
        self.admissions += 1
        if self.admissions == 1:
            # The cached tokens count as computed before, also if they are computed again after a preemption.
            self.cached = self.reached = found
            self.scheduled_at = now
            if self.times is not None:
                self.times.scheduled = now
        elif found > self.reached:
            # Others computed that of the prompt while it waited, or of tokens that are known from elsewhere.
            self.cached_later += max(0, min(found, prompt) - self.reached)
            self.reached = found
        return self.admissions == 1

    def admitted_elsewhere(self, cached: int) -> None:
        """Note that another engine admitted the prompt first, and found so many of its tokens."""
        self.admissions, self.cached = 1, cached

    def advance(self, computed: int, end: int, prompt: int, known: int) -> int:
        """Note that the positions from `computed` to `end` were computed. Return how many of them had been before, here
        or in an earlier attempt, which made the `known` first tokens behind the prompt."""
        start = max(computed, self.reached)
        self.prompt_computed += max(0, min(end, prompt) - start)
        again = max(0, min(end, self.reached) - computed)
        again += max(0, min(end, prompt + known - 1) - max(start, prompt))
        self.reached = max(self.reached, end)
        return again

    def fork(self) -> "ComputeHistory":
        """Return the history of another choice, which computed nothing of the prompt itself."""
        return ComputeHistory(self.admissions, reached=self.reached, cached=self.cached, times=self.times)
