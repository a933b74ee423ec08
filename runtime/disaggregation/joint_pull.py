# SPDX-License-Identifier: Apache-2.0
"""Pulls that are made in parts, each from the pool of another rank or by another rank, and that end as one (H6)."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pontil.runtime.cache.head_groups import in_order
from pontil.runtime.disaggregation.rank_orders import RankOrders
from pontil.runtime.transfer.connector import REUSED, Pull, PullReader, PullResult

# A part is named by the pool that is read here, or by the follower that pulls it.
Part = str | int


@dataclass(slots=True, eq=False)
class PeerPools:
    """A peer, whose pools of the giving ranks are read: `sources` are those that are read here, each with the heads to
    take, None for all of ours. `columns` says of which head groups each part states digests. `waiting` counts the parts
    of pulls that have not ended. One that was detached is kept until its last pull has ended; one that is `broken`
    cannot be read by some follower, for this reason. The followers in `direct` have said, since the plan `since`, that
    they read the engine's memory of the peer themselves."""

    orders: RankOrders
    clock: Callable[[], float]
    sources: dict[str, range | None] = field(default_factory=dict)
    columns: dict[Part, range] = field(default_factory=dict)
    is_attached: bool = True
    broken: str | None = None
    since: int = 0
    direct: set[int] = field(default_factory=set)
    waiting: Counter[Part] = field(default_factory=Counter)
    # The reader of the last pull from each pool, and what each follower has received.
    readers: dict[str, PullReader] = field(default_factory=dict)
    told: dict[int, int] = field(default_factory=dict)
    beat: int = 0
    seen: dict[Part, int] = field(default_factory=dict)

    def look(self) -> int:
        """Return a number that grows as long as bytes come to every part that waits for some: one part that stalls
        stops it, whatever comes to the others. Followers that compute cannot say, and count as ones that receive."""
        counts: dict[Part, int] = {key: reader.received for key, reader in self.readers.items()} | self.told
        computing = self.orders.computing(self.clock())
        has_moved = counts != self.seen or self.waiting.keys() & computing
        if has_moved and all(counts.get(part, 0) != self.seen.get(part, 0) for part in self.waiting.keys() - computing):
            self.beat, self.seen = self.beat + 1, counts
        return self.beat


@dataclass(slots=True, eq=False, kw_only=True)
class PullPart(Pull):
    """The part of a pull that is read here, from one pool."""

    whole: "JointPull" = field(repr=False)


@dataclass(slots=True, eq=False)
class JointPull:
    """A pull in parts, of which `read` are read here; the others are the followers', ordered under this ticket.
    `columns` are the peer's of when it began, `ends` the parts that ended, in that order."""

    pull: Pull
    peer: PeerPools
    ticket: int
    columns: dict[Part, range]
    read: list[PullPart] = field(default_factory=list)
    ends: dict[Part, PullResult] = field(default_factory=dict)

    def wait(self) -> None:
        """Let the peer's progress be that of this pull, too. Bytes that came before say nothing of it."""
        self.pull.reader = self
        self.peer.readers |= {part.peer: part.reader for part in self.read if part.reader is not None}
        self.peer.look()
        self.peer.waiting.update(list(self.columns))

    @property
    def received(self) -> int:
        return self.peer.look()

    def cancel(self, pull: Pull) -> None:
        """Cancel the parts that have not ended."""
        for part in self.read:
            part.cancel()
        if any(isinstance(part, int) for part in self.columns.keys() - self.ends.keys()):
            self.peer.orders.add("cancelled", self.ticket)

    def end(self, part: Part, result: PullResult) -> bool:
        """Record the end of a part, and return whether the pull has ended with it. The end of an unknown part, or a
        second one, is ignored. After an error the other parts are of no use."""
        if part not in self.columns or part in self.ends:
            return False
        self.ends[part] = result
        self.peer.waiting -= Counter({part: 1})
        if len(self.ends) < len(self.columns):
            if result.error:
                self.cancel(self.pull)
            return False
        self.pull.result = self.joined()
        return True

    def joined(self) -> PullResult:
        """The end of the whole pull: good if all parts are. The first error is stated."""
        ends = list(self.ends.values())
        moved_bytes, seconds = sum(end.bytes for end in ends), max(end.seconds for end in ends)
        error = next((end.error for end in ends if end.error), None)
        if error is None and len({end.epoch for end in ends}) > 1:
            error = REUSED
        if error is None:
            part_digests = [(self.columns[part], end.digests) for part, end in self.ends.items()]
            groups = max(columns.stop for columns in self.columns.values())
            try:
                digests = in_order(part_digests, len(self.pull.pairs), groups)
                return PullResult(None, ends[0].epoch, moved_bytes, seconds, digests)
            except ValueError as fault:
                error = str(fault)
        return PullResult(error, None, moved_bytes, seconds)
