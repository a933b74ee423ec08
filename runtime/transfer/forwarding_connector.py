# SPDX-License-Identifier: Apache-2.0
"""A connector that hands everything to another one: the base of those that change a part of it."""

from collections.abc import Sequence
from typing import Any

from pontil.runtime.transfer.connector import Pair, PullResult, SliceConnector
from pontil.runtime.transfer.grants import Grant


class ForwardingConnector:
    """A connector over an `inner` one, whose tickets and results are its own."""

    def __init__(self, inner: SliceConnector) -> None:
        self.inner = inner

    def register(self) -> dict[str, Any]:
        return self.inner.register()

    def attach(self, peer: str, descriptor: dict[str, Any], heads: range | None = None) -> None:
        self.inner.attach(peer, descriptor, heads)

    def detach(self, peer: str) -> None:
        self.inner.detach(peer)

    def staged(self, peer: str) -> bool:
        return self.inner.staged(peer)

    def lost(self) -> list[str]:
        return self.inner.lost()

    def pull(
        self, peer: str, pairs: Sequence[Pair], slot: int, shown: Grant | None = None, heads: range | None = None
    ) -> int:
        return self.inner.pull(peer, pairs, slot, shown, heads)

    def poll(self) -> list[PullResult]:
        return self.inner.poll()

    def received(self, peer: str) -> int:
        return self.inner.received(peer)

    def cancel(self, ticket: int) -> None:
        self.inner.cancel(ticket)

    def close(self) -> None:
        self.inner.close()
