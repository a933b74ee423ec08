# SPDX-License-Identifier: Apache-2.0
"""The seconds of a step and of a pull, from measured points.

A step's time is that of its rows, and of the keys and values that they read: of a sequence that decodes those of its
context, once for all rows that verify its guesses; of a prompt token those of all before it. Between measured rows
seconds grow evenly. A step of both kinds takes another time than one of each: less as weights are read once, and more
where fewer rows at a time are computed better. That difference is measured, by both.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, median
from typing import TYPE_CHECKING

from pontil.runtime.foundation.value import value
from pontil.runtime.planner.device_profile import MADE_BY, LendingTimes, ProfileError, StepTimes

# A proxy has these times too, and no torch.
if TYPE_CHECKING:
    from pontil.runtime.engine.sequences.batch import Span

# Nobody lends cores.
ALONE = LendingTimes()
# One measurement: what it is grouped by, what it is multiplied by, its seconds.
Point = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by size: `points` of rising sizes. Behind the last they grow on evenly, and before the first they are as
    there."""

    points: tuple[tuple[float, float], ...]

    def at(self, size: float) -> float:
        points = self.points
        if size <= points[0][0] or len(points) == 1:
            return points[0][1]
        after = min(bisect_left(points, (size, 0.0)), len(points) - 1)
        (few, less), (many, more) = points[after - 1 : after + 1]
        return max(0.0, less + (more - less) * (size - few) / (many - few))

    @property
    def growth(self) -> float:
        """The seconds of one more on average, from the first measured size to the last."""
        (few, less), (many, more) = self.points[0], self.points[-1]
        return (more - less) / (many - few) if many > few else less / max(1.0, few)


@dataclass(frozen=True, slots=True)
class Differences:
    """Seconds by rows that decode and prompt tokens: `lines` of rising rows, each with points of rising tokens. Between
    measured ones they change evenly, outside they are as at the edge."""

    lines: tuple[tuple[float, tuple[tuple[float, float], ...]], ...]

    def at(self, rows: float, tokens: float) -> float:
        after = bisect_left(self.lines, (rows,))
        beside = self.lines[max(0, after - 1) : after + 1]
        return between([(known, between(points, tokens)) for known, points in beside], rows)


def between(points: Sequence[tuple[float, float]], size: float) -> float:
    """Return the value at a size, 0 without points."""
    if not points:
        return 0.0
    after = bisect_left(points, (size, -inf))
    if after in (0, len(points)):
        return points[min(after, len(points) - 1)][1]
    (few, less), (many, more) = points[after - 1 : after + 1]
    return less + (more - less) * (size - few) / (many - few)


def fitted(points: Iterable[Point]) -> tuple[Curve, float]:
    """Fit `seconds = curve(size) + slope * reads` to points (size, reads, seconds): the slope is the one with the least
    squares within the points of each size, and the curve what is left."""
    groups = defaultdict[float, list[tuple[float, float]]](list)
    for size, reads, seconds in points:
        groups[size].append((reads, seconds))
    above = below = 0.0
    for group in groups.values():
        middle, mean = fmean(reads for reads, _ in group), fmean(seconds for _, seconds in group)
        above += sum((reads - middle) * (seconds - mean) for reads, seconds in group)
        below += sum((reads - middle) ** 2 for reads, _ in group)
    slope = max(0.0, above / below) if below else 0.0
    rest = [(size, max(0.0, fmean(one - slope * reads for reads, one in groups[size]))) for size in sorted(groups)]
    return Curve(rising(rest)), slope


def rising(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return the points with none below the one before it: more rows take no less time, whatever noise says."""
    made = list[tuple[float, float]]()
    for size, seconds in points:
        made.append((size, max(seconds, made[-1][1]) if made else seconds))
    return tuple(made)


@value(frozen=True, slots=True)
class StepWork:
    """The work of one step: rows that decode, the positions that their sequences read, prompt tokens, and what these
    read."""

    rows: int
    read: float
    tokens: int
    prompt_read: float

    @classmethod
    def of(cls, spans: "Iterable[Span]") -> "StepWork":
        rows = read = tokens = prompt_read = 0
        for span in spans:
            start, count = span.start, span.count
            if start < len(span.sequence.prompt):
                tokens += count
                prompt_read += count * start + count * (count + 1) // 2
            else:
                rows += count
                read += start + count
        return cls(rows, float(read), tokens, float(prompt_read))


class StepCosts:
    """The times of one profile."""

    def __init__(self, times: StepTimes, lending: LendingTimes = ALONE) -> None:
        steps = [(rows, read, tokens, more, ms / 1e3) for rows, read, tokens, more, ms in times.steps]
        decode = [(rows, read, seconds) for rows, read, tokens, _, seconds in steps if rows and not tokens]
        prompt = [(tokens, read, seconds) for rows, _, tokens, read, seconds in steps if tokens and not rows]
        if not decode or not prompt:
            raise ProfileError(f"it has no steps that only decode, or none of prompts alone: {MADE_BY}")
        self.decode, self.decode_read = fitted(decode)
        self.prompt, self.prompt_read = fitted(prompt)
        self.pulls, _ = fitted((blocks, 0.0, ms / 1e3) for blocks, ms in times.pulls)
        self.together = self.differences(step for step in steps if step[0] and step[2])
        self.lent_answers = sorted((rows, factor) for rows, tokens, factor in lending.factors if not tokens)
        self.lent_prompts = sorted((tokens, factor) for _, tokens, factor in lending.factors if tokens)

    def differences(self, steps: Iterable[tuple[float, float, float, float, float]]) -> Differences:
        """Return how much longer measured steps of both kinds take than those of each, the median of what they read."""
        found = defaultdict[float, defaultdict[float, list[float]]](lambda: defaultdict(list))
        for rows, read, tokens, prompt_read, seconds in steps:
            apart = self.answers(rows, read) + self.prompts(tokens, prompt_read)
            found[rows][tokens].append(seconds - apart)
        lines = {rows: tuple((tokens, median(some)) for tokens, some in sorted(found[rows].items())) for rows in found}
        return Differences(tuple(sorted(lines.items())))

    def answers(self, rows: float, read: float) -> float:
        """Return the seconds of a step that only decodes."""
        return self.decode.at(rows) + self.decode_read * read

    def prompts(self, tokens: float, read: float) -> float:
        """Return the seconds of a step of prompts alone."""
        return self.prompt.at(tokens) + self.prompt_read * read

    def beside(self, rows: float, read: float, tokens: float) -> float:
        """Return the seconds that rows which decode add to a step of so many prompt tokens."""
        return max(0.0, self.answers(rows, read) + self.together.at(rows, tokens))

    def step(self, work: StepWork) -> float:
        if not work.tokens:
            return self.answers(work.rows, work.read)
        alone = self.prompts(work.tokens, work.prompt_read)
        return alone + self.beside(work.rows, work.read, work.tokens) if work.rows else alone

    def lent(self, work: StepWork) -> float:
        """Return the factor on a step's time while another worker lends its cores."""
        factors, size = (self.lent_prompts, work.tokens) if work.tokens else (self.lent_answers, work.rows)
        return between(factors, size) or 1.0

    def pull(self, blocks: int) -> float:
        """Return the seconds of a pull of so many blocks."""
        return self.pulls.at(blocks)
