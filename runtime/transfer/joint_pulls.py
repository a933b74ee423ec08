# SPDX-License-Identifier: Apache-2.0
"""Pulls that are made in parts, each by or from another rank, and that end as one (rule H6)."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from pontil.runtime.cache.head_groups import in_order
from pontil.runtime.transfer.connector import PullResult

REUSED = "the peer reused the blocks before they were read"


@dataclass(slots=True)
class JointPull:
    """A pull of `blocks` blocks in parts. `columns` says for which of the `groups` head groups each part states
    digests; `ends` are the parts that ended, in that order."""

    ticket: int
    peer: str
    blocks: int
    groups: int
    columns: dict[int, range]
    ends: dict[int, PullResult] = field(default_factory=dict)

    @property
    def waiting(self) -> set[int]:
        """The parts that have not ended: their copiers may still write."""
        return self.columns.keys() - self.ends.keys()

    def result(self) -> PullResult:
        """The end of the whole pull: good if all parts are. The first error is stated."""
        ends = list(self.ends.values())
        moved, seconds = sum(end.bytes for end in ends), max(end.seconds for end in ends)
        error = next((end.error for end in ends if end.error), None)
        if error is None and len({end.epoch for end in ends}) > 1:
            error = REUSED
        digests = list[int]()
        if error is None:
            try:
                stated = [(self.columns[part], end.digests) for part, end in self.ends.items()]
                digests = in_order(stated, self.blocks, self.groups)
            except ValueError as fault:
                error = str(fault)
        epoch = None if error else ends[0].epoch
        return PullResult(self.ticket, error, epoch, moved, seconds, digests)


class JointPulls:
    """All open pulls, and the results of those that ended since the last `take`. `counts` are the pulls from each peer
    that wait for a part: every transfer asks for its peer in every turn."""

    def __init__(self) -> None:
        self.open: dict[int, JointPull] = {}
        self.done: list[PullResult] = []
        self.counts: dict[str, Counter[int]] = {}

    def begin(self, pull: JointPull) -> None:
        self.open[pull.ticket] = pull
        self.counts.setdefault(pull.peer, Counter()).update(list(pull.columns))

    def end(self, ticket: int, part: int, result: PullResult) -> set[int]:
        """Record the end of a part. One of a pull that has ended, or a second one, is ignored. Return the parts to
        cancel: after an error the others are of no use."""
        pull = self.open.get(ticket)
        if pull is None or part not in pull.waiting:
            return set()
        pull.ends[part] = result
        self.count_down(pull.peer, part)
        if pull.waiting:
            return pull.waiting if result.error else set()
        del self.open[ticket]
        self.done.append(pull.result())
        return set()

    def take(self) -> list[PullResult]:
        done, self.done = self.done, []
        return done

    def count_down(self, peer: str, part: int) -> None:
        counts = self.counts[peer]
        counts[part] -= 1
        if not counts[part]:
            del counts[part]
        if not counts:
            del self.counts[peer]

    def waiting(self, peer: str) -> set[int]:
        """The parts for which some pull from this peer waits."""
        return set(self.counts.get(peer, ()))


@dataclass(slots=True)
class JointProgress:
    """A number that grows as long as bytes come to every part that waits for some: one part that stalls stops it,
    whatever comes to the others."""

    beat: int = 0
    seen: dict[int, int] = field(default_factory=dict)

    def look(self, counts: Mapping[int, int], waiting: set[int], busy: frozenset[int] = frozenset()) -> int:
        """Return the number, given how much each part has received so far. Parts that are `busy` cannot say, and are
        not held to have stalled."""
        moved = counts != self.seen or bool(waiting & busy)
        if moved and all(counts.get(part) != self.seen.get(part) for part in waiting - busy):
            self.beat, self.seen = self.beat + 1, dict(counts)
        return self.beat
