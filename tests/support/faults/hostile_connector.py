# SPDX-License-Identifier: Apache-2.0
"""A connector that misbehaves in every way that its contract permits, and in some that it forbids.

It keeps the one promise that cannot be checked: it does not write to a pull's blocks after it reported the end of the
pull.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.transfer.connector import Pull, PullResult, SliceConnector
from pontil.runtime.transfer.cut_connector import ForwardingConnector
from pontil.runtime.transfer.shm.connector import ShmConnector
from pontil.runtime.transfer.shm.copying_connector import CopyJob

NEVER = 1 << 60


# A function that opens the connector inside.
Inner = Callable[[KVStorage, Callable[[], None]], SliceConnector]


class Mischief(Enum):
    """Faults of a pull. STUCK ignores even its cancellation; LATE reads after many polls; SCRIBBLE writes garbage until
    it ends with an error; EMPTY reports success and copies nothing."""

    NONE = "none"
    DELAY = "delay"
    LATE = "late"
    STALL = "stall"
    STUCK = "stuck"
    TWICE = "twice"
    CORRUPT = "corrupt"
    EMPTY = "empty"
    ERROR = "error"
    SCRIBBLE = "scribble"
    STRANGER = "stranger"


# Kinds that end by themselves or on cancellation, as every connector must.
FINITE = tuple(kind for kind in Mischief if kind is not Mischief.STUCK)
DELAYS = {Mischief.DELAY: 3, Mischief.LATE: 4, Mischief.SCRIBBLE: 4, Mischief.STALL: NEVER, Mischief.STUCK: NEVER}


class PullAtOnce(ShmConnector):
    """Connector that copies in the caller's thread, before `pull` returns."""

    def pull(self, pull: Pull) -> None:
        pull.reader, pool = self, self.peers.get(pull.peer)
        if pool is None:
            self.finish(pull, PullResult("the peer is gone"))
        else:
            self.finish(pull, self.copy(CopyJob(pull, pool, self.storage.mark())))


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that has not ended for the caller. `begins` and `ends` are counted in polls; `inside` is the pull of the
    connector inside, once it has begun, and `done` its result."""

    pull: Pull
    kind: Mischief
    begins: int
    ends: int
    inside: Pull | None = None
    done: PullResult | None = None


class HostileConnector(ForwardingConnector):
    """Wrapper of a connector that copies. `choose` returns the fault of the next pull, none by default. With
    `backwards`, results due in one poll are returned in reverse order."""

    def __init__(self, storage: KVStorage, wake: Callable[[], None], inner: Inner = ShmConnector) -> None:
        super().__init__(inner(storage, wake))
        self.storage, self.wake = storage, wake
        self.turn, self.backwards = 0, False
        self.choose: Callable[[], Mischief] = lambda: Mischief.NONE
        self.held: list[HeldPull] = []
        # The pull that was begun last inside.
        self.latest: Pull | None = None

    @property
    def received(self) -> int:
        return 0 if self.latest is None else self.latest.received

    def pull(self, pull: Pull) -> None:
        kind = self.choose()
        wait = DELAYS.get(kind, 0)
        late = kind in (Mischief.LATE, Mischief.SCRIBBLE, Mischief.STALL, Mischief.STUCK)
        held = HeldPull(pull, kind, self.turn + wait if late else 0, self.turn + wait)
        pull.reader = self
        self.held.append(held)
        self.begin(held)

    def begin(self, held: HeldPull) -> None:
        """Start a pull that is due. EMPTY reads the cell and copies nothing."""
        if held.inside is not None or held.begins > self.turn:
            return
        pull, pairs = held.pull, [] if held.kind is Mischief.EMPTY else held.pull.pairs
        held.inside = self.latest = Pull(pull.peer, pairs, pull.slot, heads=pull.heads)
        self.inner.pull(held.inside)

    def cancel(self, pull: Pull) -> None:
        held = next((held for held in self.held if held.pull is pull), None)
        if held is not None and held.kind is not Mischief.STUCK:
            held.ends = self.turn + (held.kind is Mischief.SCRIBBLE)
            if held.inside is not None:
                held.inside.cancel()
            self.wake()

    def poll(self) -> list[Pull]:
        self.turn += 1
        for held in self.held:
            if held.kind is Mischief.SCRIBBLE:
                self.storage.shared[[ours for _, ours in held.pull.pairs]] = 0xAA
            elif not held.pull.is_cancelled:
                self.begin(held)
        for ended in self.inner.poll():
            held = next(held for held in self.held if held.inside is ended)
            held.done = self.spoil(held, ended.end)
        due = [held for held in self.held if held.ends <= self.turn and (held.done or held.inside is None)]
        ends = [end for held in due for end in self.end(held)]
        return ends[::-1] if self.backwards else ends

    def spoil(self, held: HeldPull, done: PullResult) -> PullResult:
        """Return the result to report for a pull that has ended inside. The digests are always those of the actual
        blocks."""
        ours = [block for _, block in held.pull.pairs]
        if done.error:
            return done
        if held.kind is Mischief.ERROR:
            return replace(done, error="the network is down", epoch=None, digests=[])
        storage = self.storage
        heads = held.pull.heads or storage.layout.kv_heads
        if held.kind is Mischief.CORRUPT and ours:
            storage.slices(storage.bytes, storage.layout.kv_heads, heads)[ours[-1], 0, 5] += 1
        return replace(done, bytes=len(ours) * storage.slice_bytes(heads), digests=storage.digests(ours, heads))

    def end(self, held: HeldPull) -> list[Pull]:
        self.held.remove(held)
        pull = held.pull
        pull.result = held.done or PullResult("cancelled" if pull.is_cancelled else "nothing came")
        if held.kind is Mischief.STRANGER:
            return [replace(pull), pull]
        return [pull, pull] if held.kind is Mischief.TWICE else [pull]

    def close(self) -> None:
        super().close()
        for held in self.held:
            held.ends, held.pull.is_cancelled = 0, True
