# SPDX-License-Identifier: Apache-2.0
"""The progress of a stage of a run, as its workers report it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pontil.runtime.accounting.book import stated_count
from pontil.runtime.stages.graph.catalog import GraphModel
from pontil.runtime.wire.messages import PassDone


@dataclass(slots=True)
class StageProgress:
    """A stage, as its reports tell (E5): `walk` is the one that ran last, `passes` are those of one attempt,
    `produced`, `token_counts` and `next_index` are by stream, `walks` are the walks of its consumers."""

    walk: str = ""
    passes: int = 0
    produced: dict[str, int] = field(default_factory=dict)
    token_counts: dict[str, int] = field(default_factory=dict)
    next_index: dict[str, int] = field(default_factory=dict)
    walks: dict[str, str] = field(default_factory=dict)
    done: bool = False

    @property
    def advance(self) -> int:
        return self.passes + sum(self.produced.values()) + sum(self.next_index.values())

    def take(self, report: PassDone, model: GraphModel) -> bool:
        """Merge a report, of this model's streams and walks; return whether the stage has advanced. What grows merges
        by maximum, so a report that comes late or twice changes nothing."""
        before = self.advance
        for mine, theirs in (
            (self.produced, report.produced),
            (self.token_counts, report.token_counts),
            (self.next_index, report.next_index),
        ):
            counts = {edge: stated_count(value) for edge, value in theirs.items() if edge in model.edges}
            larger(mine, {edge: count for edge, count in counts.items() if count is not None})
        for one in model.graph.partitions:
            if (walk := report.walks.get(one.name)) is not None and one.walk(walk) is not None:
                self.walks[one.name] = walk
        self.walk, self.done = report.walk, self.done or report.done
        self.passes = max(self.passes, report.passes)
        return self.advance > before


def larger(mine: dict[str, int], theirs: Mapping[str, int]) -> None:
    """Raise each value to that of another mapping, where that is larger or new."""
    for name, value in theirs.items():
        mine[name] = max(mine.get(name, value), value)
