# SPDX-License-Identifier: Apache-2.0
"""Faults that are planted in the product, each of which the world must find: it must be able to fail."""

from collections.abc import Callable, Sequence
from typing import Any

from pontil.runtime.cache import prefix
from pontil.runtime.disaggregation.sender import KVSender, SendTransfer
from pontil.runtime.proxy.request import Request


def replaced(owner: Any, name: str, planted: Any) -> None:
    """Put something else in a place of the product."""
    assert hasattr(owner, name), f"{owner} has no {name} any more: plant this fault where it is now"
    setattr(owner, name, planted)


def prefix_key_without_its_parent() -> None:
    """A block is found by its own tokens, whatever stands before them."""
    chain: Callable[[bytes, Sequence[int]], bytes] = prefix.chain
    root = prefix.root_key("")
    replaced(prefix, "chain", lambda parent, tokens: chain(root, tokens))


def cancels_are_dropped() -> None:
    """Workers are not told that nobody waits for an attempt any more."""
    replaced(Request, "cancels", lambda self, incarnation: [])


def epoch_stays_when_blocks_are_freed() -> None:
    """Blocks return to the pool under the number that their reader was told."""

    def bump(self: KVSender, sent: SendTransfer, now: float) -> None:
        self.last_epoch += 1

    replaced(KVSender, "bump_epoch", bump)


PLANTED: dict[str, Callable[[], None]] = {
    "prefix-key-without-its-parent": prefix_key_without_its_parent,
    "cancels-are-dropped": cancels_are_dropped,
    "epoch-stays-when-blocks-are-freed": epoch_stays_when_blocks_are_freed,
}
