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
class OpenPass:
    """A pass of which some worker has reported: who did, and its counts so far."""

    reported: set[str] = field(default_factory=set)
    token_counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class PassProgress:
    """One partition, as its reports tell. `walk` is that of the latest pass that was reported, whose number is
    `latest`. All passes before `passes` are complete, and those in `ahead`: a worker need not wait for the others'
    reports. `token_counts` are sums over complete passes."""

    walk: str | None = None
    latest: int = 0
    passes: int = 0
    produced: dict[str, int] = field(default_factory=dict)
    token_counts: dict[str, int] = field(default_factory=dict)
    positions: dict[ConnectionKey, StreamPosition] = field(default_factory=dict)
    kv_lengths: dict[str, int] = field(default_factory=dict)
    open: dict[int, OpenPass] = field(default_factory=dict)
    ahead: set[int] = field(default_factory=set)
    is_done: bool = False

    def is_complete(self, number: int) -> bool:
        return number < self.passes or number in self.ahead

    def complete(self, number: int) -> None:
        for edge, tokens in self.open.pop(number).token_counts.items():
            self.token_counts[edge] = self.token_counts.get(edge, 0) + tokens
        self.ahead.add(number)
        while self.passes in self.ahead:
            self.ahead.remove(self.passes)
            self.passes += 1


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
        completes nothing."""
        mine = self.of(report.partition)
        self.merge(mine, report)
        # The walk is adopted before completeness is asked: the conductor need not have known that it was entered.
        if mine.walk is None or report.number >= mine.latest:
            mine.walk, mine.latest = report.walk, report.number
        mine.is_done |= report.is_done
        if mine.is_complete(report.number):
            return False
        this = mine.open.setdefault(report.number, OpenPass())
        this.reported.add(report.worker)
        larger(this.token_counts, report.token_counts)
        if not this.reported >= set(self.workers_of(report.walk)):
            return False
        mine.complete(report.number)
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
