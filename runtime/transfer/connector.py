# SPDX-License-Identifier: Apache-2.0
"""The interface of a transport of KV blocks. It moves bytes and knows nothing of requests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pontil.runtime.cache.storage import EPOCH_SLOTS
from pontil.runtime.config.worker_config import DEADLINES, Deadlines
from pontil.runtime.foundation.loopback import LOOPBACK
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.transfer.grants import Grant
from pontil.runtime.transfer.security import TransferSecurity

# (block in the peer's pool, block in ours)
Pair = tuple[int, int]

FOREIGN_BLOCKS = "the peer announced blocks that it does not have"
FOREIGN_HEADS = "the peer's pool or ours does not have these heads"
# The error of a pull that ended by an exception in the connector itself.
FAULT = "copying failed by a fault of this worker's ({!r})"
GONE = "the peer is gone"
REUSED = "the peer reused the blocks before they were read"


@dataclass(frozen=True, slots=True)
class PullResult:
    """The end of a pull. `error` is None when every byte arrived; `epoch` is the peer's cell as it was read *after* the
    data, and `digests` are of the blocks as they arrived in our pool, in the order of the pairs."""

    error: str | None
    epoch: int | None = None
    bytes: int = 0
    seconds: float = 0.0
    digests: list[int] = field(default_factory=list)


class PullReader(Protocol):
    """The part of a connector that carries out a pull."""

    @property
    def received(self) -> int:
        """A number that grows as long as bytes come from the pull's peer, whichever pull they are for: one that waits
        behind another is not stalled."""

    def cancel(self, pull: "Pull") -> None:
        """End a pull that `is_cancelled`, at once and without waiting for those before it."""


@dataclass(slots=True, eq=False)
class Pull:
    """A pull, from the call for it to its end: copy blocks, then read epoch cell `slot` of the peer. Across a network
    with keys, the peer requires the transfer's grant (`shown`). `heads`: only these of the model's KV heads of each
    block, by default all of ours; the digests are then those of the slices. A connector sets `reader` when it takes the
    pull, and `result` from any thread: the pull has ended once `poll` has returned it."""

    peer: str
    pairs: Sequence[Pair]
    slot: int
    shown: Grant | None = None
    heads: range | None = None
    is_cancelled: bool = False
    reader: PullReader | None = field(default=None, repr=False)
    result: PullResult | None = None

    @property
    def received(self) -> int:
        return 0 if self.reader is None else self.reader.received

    @property
    def end(self) -> PullResult:
        """The result of a pull that has ended."""
        assert self.result is not None
        return self.result

    def cancel(self) -> None:
        """Cancel the pull. It still ends with a result; one that has ended is no error."""
        self.is_cancelled = True
        if self.reader is not None and self.result is None:
            self.reader.cancel(self)


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    """Options of a connector besides its pool, each of which it may ignore. `host` is the address under which peers
    reach this machine; with a `guard` only peers with the same keys are accepted across a network."""

    host: str = LOOPBACK
    deadlines: Deadlines = DEADLINES
    guard: TransferSecurity | None = None
    failures: ThreadFailures | None = None


# Loopback, without keys.
PLAIN_OPTIONS = ConnectorOptions()


class Connector(Protocol):
    """A transport that pulls blocks from peers' pools into this process's own pool, in the background.

    Only the puller writes, and only to its own pool, so a late or lost peer cannot corrupt it. No method blocks on a
    peer's progress or raises for what a peer did: a failure is a PullResult with an error. A pull's blocks belong to
    the connector until `poll` has returned the pull, also when it was cancelled. All methods, and those of Pull, are
    called by the engine's thread.
    """

    def register(self) -> dict[str, Any]:
        """Return the descriptor by which peers can read our pool: plain values that travel in a message."""

    def attach(self, peer: str, descriptor: dict[str, Any]) -> None:
        """Make a peer's pool readable under its incarnation. Raise TransferError when it cannot be read from here.
        Attaching a peer again changes nothing."""

    def detach(self, peer: str) -> None:
        """Forget a peer once its pulls have ended. Unknown peers are no error."""

    def staged(self, peer: str) -> bool:
        """Return whether this peer has to copy its blocks to host memory before we can read them, if it computes on a
        GPU."""

    def lost(self) -> list[str]:
        """Return the attached peers whose process has ended."""

    def pull(self, pull: Pull) -> None:
        """Begin a pull, which `poll` will return when it has ended."""

    def poll(self) -> list[Pull]:
        """Return the pulls that ended since the last call, in the order they ended, each with its result."""

    def close(self) -> None:
        """Stop copying and detach every peer."""


class SliceConnector(Connector, Protocol):
    """A connector that can also read a pool with other KV heads than ours, which a worker of another number of ranks
    has."""

    def attach(self, peer: str, descriptor: dict[str, Any], heads: range | None = None) -> None:
        """Attach a pool that holds these of the model's KV heads, by default the same as ours."""


def runs(pairs: Sequence[Pair]) -> list[tuple[int, int, int]]:
    """Return the pairs with neighbours on both sides merged: (theirs, ours, count)."""
    spans: list[tuple[int, int, int]] = []
    for theirs, ours in pairs:
        if spans and spans[-1][0] + spans[-1][2] == theirs and spans[-1][1] + spans[-1][2] == ours:
            spans[-1] = (spans[-1][0], spans[-1][1], spans[-1][2] + 1)
        else:
            spans.append((theirs, ours, 1))
    return spans


def pieces(pairs: Sequence[Pair], most: int) -> Iterator[tuple[int, int, int]]:
    """Yield the runs, split into runs of at most `most` blocks."""
    for theirs, ours, count in runs(pairs):
        for start in range(0, count, most):
            yield theirs + start, ours + start, min(most, count - start)


class ReadablePool(Protocol):
    """A peer's pool, with the KV heads in it."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def heads(self) -> range: ...


def objection(pull: Pull, pool: ReadablePool | None, held: range) -> str | None:
    """Return why this pull cannot be made, if it cannot. `held` are the heads in our pool."""
    if pool is None:
        return GONE
    if not can_be_read(pull.pairs, pull.slot, pool.num_blocks):
        return FOREIGN_BLOCKS
    return None if is_within(pull.heads or held, pool.heads, held) else FOREIGN_HEADS


def is_within(heads: range, *pools: range) -> bool:
    """Return whether each of the pools has these heads."""
    return bool(heads) and all(pool.start <= heads.start and heads.stop <= pool.stop for pool in pools)


def can_be_read(pairs: Sequence[Pair], slot: int, num_blocks: int) -> bool:
    """Return whether a pool of `num_blocks` has these blocks and this cell. Block 0 is padding and never sent."""
    inside = all(0 < theirs < num_blocks for theirs, _ in pairs)
    return inside and len(pairs) < num_blocks and 0 <= slot < EPOCH_SLOTS
