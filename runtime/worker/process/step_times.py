# SPDX-License-Identifier: Apache-2.0
"""The times that a worker's steps take, by their sizes, for its heartbeat: proxies compare those of several workers."""

from collections.abc import Iterable
from dataclasses import dataclass

from pontil.runtime.engine.sequences.batch import Span
from pontil.runtime.wire.step_sizes import DECODE_GAUGES, PREFILL_GAUGES, size_of

# Steps over which a time is averaged, and as many times as long as the average as one counts at most: what stood still
# for a moment is not slow.
STEPS, MOST = 16, 2.0
# Fewest steps of a size whose time is told.
KNOWN = 8


@dataclass(slots=True)
class MeanTime:
    """The mean time in seconds of the last steps of one size."""

    name: str
    count: int = 0
    mean: float = 0.0


class MeanStepTimes:
    """The times of steps. Those that only decode are told apart from those that compute prompts, and steps of one kind
    by their rows: an answer has one in each step, and one for each guess, a prompt one for each of its tokens."""

    def __init__(self) -> None:
        # By whether there were prompts, and size.
        self.means: dict[tuple[bool, int], MeanTime] = {}

    def add(self, spans: Iterable[Span], seconds: float) -> None:
        """Add a step that computed these spans."""
        rows, has_prompts = 0, False
        for span in spans:
            rows += span.count
            if span.count > 1 and not span.drafts:
                has_prompts = True
        if not rows:
            return
        size = has_prompts, size_of(rows)
        time = self.means.get(size)
        if time is None:
            time = self.means[size] = MeanTime(
                (PREFILL_GAUGES if has_prompts else DECODE_GAUGES)[size[1]], mean=seconds
            )
        if time.count < STEPS:
            time.count += 1
        time.mean += (min(seconds, MOST * time.mean) - time.mean) / time.count

    def gauges(self) -> dict[str, int]:
        """Return the means in microseconds under their names in heartbeats."""
        return {time.name: int(time.mean * 1e6) for time in self.means.values() if time.count >= KNOWN}
