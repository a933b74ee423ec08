# SPDX-License-Identifier: Apache-2.0
"""Grants: each allows a decode worker to read the blocks of one transfer, and no others.

The proxy draws a secret for each transfer and sends it to both of its workers. A pull carries a stamp made with it,
over everything that it asks for; the owner of the blocks checks the stamp before it sends a byte.
"""

import hmac
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

STAMP_BYTES = 32


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to read the blocks of the transfer with this id and epoch. `secret` is the proxy's, in hexadecimal."""

    transfer_id: str
    epoch: int
    secret: str = field(repr=False)

    def stamp(self, request: bytes) -> bytes:
        """Return the HMAC-SHA256 over a request, its transfer and its epoch."""
        message = f"{self.transfer_id} {self.epoch} ".encode() + request
        return hmac.digest(self.secret.encode(), message, "sha256")


@dataclass(slots=True)
class OpenGrant:
    """A transfer that may be pulled: the cell with its epoch, and the blocks that were announced so far."""

    granted: Grant
    slot: int
    blocks: set[int] = field(default_factory=set)


class Grants:
    """The grants that are valid now. The engine's thread opens and closes them, other threads check requests against
    them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.opened: dict[str, OpenGrant] = {}

    def open(self, granted: Grant, slot: int) -> None:
        with self.lock:
            self.opened[granted.transfer_id] = OpenGrant(granted, slot)

    def allow(self, transfer_id: str, blocks: Iterable[int]) -> None:
        """Add announced blocks of a transfer. A transfer without a grant does not cross a network and is ignored."""
        with self.lock:
            if transfer_id in self.opened:
                self.opened[transfer_id].blocks.update(blocks)

    def close(self, transfer_id: str) -> None:
        """Let no new read of this transfer begin. A read in progress notices by the epoch that it came too late."""
        with self.lock:
            self.opened.pop(transfer_id, None)

    def admits(
        self, shown: str, epoch: int, request: bytes, stamp: bytes, slot: int, runs: Sequence[tuple[int, int]]
    ) -> bool:
        """Return whether the request, for these runs and this cell, was stamped with the grant of the transfer `shown`.
        Runs of more blocks than were announced are refused before they are enumerated."""
        with self.lock:
            entry = self.opened.get(shown)
            if entry is None:
                return False
            grant, blocks = entry.granted, entry.blocks
            proper = (entry.slot, grant.epoch) == (slot, epoch) and sum(count for _, count in runs) <= len(blocks)
            proper = proper and all(block in blocks for first, count in runs for block in range(first, first + count))
        return hmac.compare_digest(grant.stamp(request), stamp) and proper
