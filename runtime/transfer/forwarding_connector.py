# SPDX-License-Identifier: Apache-2.0
"""A connector that hands everything to another one: the base of those that change a part of it."""

from typing import Any

from pontil.runtime.transfer.connector import Pull, SliceConnector


class ForwardingConnector:
    """A connector over an `inner` one."""

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

    def pull(self, pull: Pull) -> None:
        self.inner.pull(pull)

    def poll(self) -> list[Pull]:
        return self.inner.poll()

    def close(self) -> None:
        self.inner.close()
