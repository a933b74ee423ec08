# SPDX-License-Identifier: Apache-2.0
"""Pulls into the pool of one rank from peers of any number of ranks: each needed giving rank has its own pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from pontil.runtime.cache.head_groups import HeadGroups, can_divide
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.connector import Pair, PullResult, SliceConnector
from pontil.runtime.transfer.grants import Grant
from pontil.runtime.transfer.joint_pulls import JointProgress, JointPull, JointPulls

RANKS = "ranks"


@dataclass(frozen=True, slots=True)
class HeadSource:
    """A giving rank's pool, attached under `key`, and the heads to pull from it; None for all of ours."""

    key: str
    heads: range | None = None


def pools_of(descriptor: dict[str, Any], heads: int) -> list[dict[str, Any]]:
    """Return the descriptors of a peer's ranks: one that does not name ranks is itself the only one. Raises
    TransferError if so many ranks cannot hold the model's `heads`."""
    if descriptor.get("kind") != RANKS:
        return [descriptor]
    pools = descriptor.get("pools")
    if not isinstance(pools, list) or not all(isinstance(pool, dict) for pool in pools):
        raise TransferError("the peer's descriptor has no usable 'pools'")
    if not can_divide(heads, len(pools)):
        raise TransferError(f"the peer's {len(pools)} ranks cannot hold {heads} KV heads: its model is another one")
    return pools


class RankedConnector:
    """The connector of one rank. It splits each pull by the ranks of the peer that have our heads, and joins the
    results; digests are in the order (block, head group)."""

    def __init__(self, inner: SliceConnector, storage: KVStorage) -> None:
        self.inner, self.layout = inner, storage.layout
        self.tickets = count(1)
        self.sources: dict[str, list[HeadSource]] = {}
        self.progress: dict[str, JointProgress] = {}
        self.pulls = JointPulls()
        # (ticket, part) by the ticket of the inner pull, and the other way.
        self.parts: dict[int, tuple[int, int]] = {}
        self.inner_of: dict[tuple[int, int], int] = {}
        # Peers that were detached and still have pulls, which go on.
        self.leaving: dict[str, tuple[list[HeadSource], JointProgress]] = {}

    def register(self) -> dict[str, Any]:
        return self.inner.register()

    def attach(self, peer: str, descriptor: dict[str, Any]) -> None:
        if peer in self.sources:
            return
        layout, pools = self.layout, pools_of(descriptor, self.layout.num_kv_heads)
        division = HeadGroups(layout.num_kv_heads, len(pools), layout.ranks)
        sources = list[HeadSource]()
        try:
            for group in division.taken_by(layout.rank):
                giver = division.giver_of(group)
                sources.append(HeadSource(f"{peer}/{giver}", division.all[group]))
                self.inner.attach(sources[-1].key, pools[giver], division.held_by(giver))
        except TransferError:
            for source in sources:
                self.inner.detach(source.key)
            raise
        self.sources[peer], self.progress[peer] = sources, JointProgress()

    def detach(self, peer: str) -> None:
        sources, progress = self.sources.pop(peer, []), self.progress.pop(peer, None)
        for source in sources:
            self.inner.detach(source.key)
        if progress is not None and self.pulls.waiting(peer):
            self.leaving[peer] = sources, progress

    def staged(self, peer: str) -> bool:
        return any(self.inner.staged(source.key) for source in self.sources.get(peer, [HeadSource(peer)]))

    def lost(self) -> list[str]:
        lost = self.inner.lost()
        return sorted({key.rpartition("/")[0] for key in lost}) if lost else lost

    def pull(self, peer: str, pairs: Sequence[Pair], slot: int, shown: Grant | None = None) -> int:
        ticket = next(self.tickets)
        sources = self.sources.get(peer, [HeadSource(peer)])
        columns = {part: range(part, part + 1) for part in range(len(sources))}
        self.pulls.begin(JointPull(ticket, peer, len(pairs), len(sources), columns))
        for part, source in enumerate(sources):
            inner = self.inner.pull(source.key, pairs, slot, shown, source.heads)
            self.parts[inner] = ticket, part
            self.inner_of[ticket, part] = inner
        return ticket

    def poll(self) -> list[PullResult]:
        for done in self.inner.poll():
            ticket, part = self.parts.pop(done.ticket, (0, 0))
            self.inner_of.pop((ticket, part), None)
            self.cancel_parts(ticket, self.pulls.end(ticket, part, done))
        for peer in [peer for peer in self.leaving if not self.pulls.waiting(peer)]:
            del self.leaving[peer]
        return self.pulls.take()

    def received(self, peer: str) -> int:
        if peer in self.sources:
            sources, progress = self.sources[peer], self.progress[peer]
        elif peer in self.leaving:
            sources, progress = self.leaving[peer]
        else:
            return 0
        counts = {part: self.inner.received(source.key) for part, source in enumerate(sources)}
        return progress.look(counts, self.pulls.waiting(peer))

    def cancel(self, ticket: int) -> None:
        pull = self.pulls.open.get(ticket)
        self.cancel_parts(ticket, pull.waiting if pull else set())

    def cancel_parts(self, ticket: int, parts: set[int]) -> None:
        for part in sorted(parts):
            if (ticket, part) in self.inner_of:
                self.inner.cancel(self.inner_of[ticket, part])

    def close(self) -> None:
        self.inner.close()
