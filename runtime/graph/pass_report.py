# SPDX-License-Identifier: Apache-2.0
"""Reports of passes, and how they add up to the state of a request (E5)."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pontil.runtime.graph.connection import ConnectionKey
from pontil.runtime.graph.stream_buffer import StreamPosition, later


@dataclass(frozen=True, slots=True)
class PassReport:
    """A worker's part of one finished pass. `walk` is the one that the pass ran under, `number` the pass of the
    partition, from 0. `token_counts` are those of this pass, by edge; the rest is the state after it. `produced`: items
    by edge. `positions`: of the streams that the partition consumes. `kv_lengths`: by node. `consumer_walks`: the
    tracked walk of each consumer. Who emitted nothing sends no counts, `produced` and `consumer_walks`."""

    partition: str
    walk: str
    number: int
    worker: str
    token_counts: Mapping[str, int] = field(default_factory=dict)
    produced: Mapping[str, int] = field(default_factory=dict)
    positions: Mapping[ConnectionKey, StreamPosition] = field(default_factory=dict)
    kv_lengths: Mapping[str, int] = field(default_factory=dict)
    consumer_walks: Mapping[str, str] = field(default_factory=dict)
    is_done: bool = False


@dataclass(slots=True)
class PassProgress:
    """One partition, as its reports tell. `passes` is the number of complete passes; `walk` is the walk of the last
    report; `reported` are the workers that told of the pass that is not complete yet, and `pass_counts` its counts."""

    walk: str | None = None
    passes: int = 0
    produced: dict[str, int] = field(default_factory=dict)
    token_counts: dict[str, int] = field(default_factory=dict)
    positions: dict[ConnectionKey, StreamPosition] = field(default_factory=dict)
    kv_lengths: dict[str, int] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    pass_counts: dict[str, int] = field(default_factory=dict)
    is_done: bool = False


class GraphProgress:
    """All partitions of one request, as their reports tell. `workers_of` names the workers whose reports make a pass of
    a walk complete (`GraphPlacement.workers`)."""

    def __init__(self, workers_of: Callable[[str], Collection[str]]) -> None:
        self.workers_of = workers_of
        self.partitions = dict[str, PassProgress]()
        self.consumer_walks = dict[str, str]()
        # Number of the pass that wrote a consumer's walk, by (producer, consumer): a late report does not undo it.
        self.written = dict[tuple[str, str], int]()

    def of(self, partition: str) -> PassProgress:
        return self.partitions.setdefault(partition, PassProgress())

    def take(self, report: PassReport) -> bool:
        """Merge a report; return whether it made its pass complete. A repeated or late report changes no maximum and
        completes nothing. Passes of a partition follow one another, so a report of a pass that has not begun raises."""
        mine = self.of(report.partition)
        assert report.number <= mine.passes, f"pass {report.number} of '{report.partition}' is reported too early"
        self.merge(mine, report)
        if report.number < mine.passes:
            return False
        # The walk is adopted before completeness is asked: the conductor need not have known that it was entered.
        mine.walk = report.walk
        mine.reported.add(report.worker)
        larger(mine.pass_counts, report.token_counts)
        mine.is_done |= report.is_done
        if not mine.reported >= set(self.workers_of(report.walk)):
            return False
        for edge, tokens in mine.pass_counts.items():
            mine.token_counts[edge] = mine.token_counts.get(edge, 0) + tokens
        mine.passes, mine.reported, mine.pass_counts = mine.passes + 1, set(), {}
        return True

    def merge(self, mine: PassProgress, report: PassReport) -> None:
        """Take maxima of what only grows, and the consumers' walks of the latest pass."""
        larger(mine.produced, report.produced)
        larger(mine.kv_lengths, report.kv_lengths)
        for key, position in report.positions.items():
            mine.positions[key] = later(mine.positions.get(key, StreamPosition()), position)
        for consumer, walk in report.consumer_walks.items():
            writer = report.partition, consumer
            if report.number >= self.written.get(writer, 0):
                self.written[writer] = report.number
                self.consumer_walks[consumer] = walk


def larger(mine: dict[str, int], theirs: Mapping[str, int]) -> None:
    """Raise each value to that of another mapping, where that is larger or new."""
    for name, value in theirs.items():
        mine[name] = max(mine.get(name, value), value)
