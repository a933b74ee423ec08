# SPDX-License-Identifier: Apache-2.0
"""What one request has to say to its reader: tokens as they come, then exactly one end."""

import asyncio
from dataclasses import dataclass

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import PontilError


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the answer. `text` may be empty: a token need not complete a character (A7)."""

    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Finished:
    """The end. `route` names the workers that served the request."""

    reason: str
    usage: Usage
    route: str


class Mailbox:
    """Between the workers' frames and one reader, within one event loop.

    What the reader has not taken yet is kept as one Delta, so a slow reader holds at most one answer, and nobody waits
    for it. After `close` what is left is still delivered, then the end.
    """

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.end: Finished | PontilError | None = None
        self.waiter: asyncio.Future[None] | None = None

    def put(self, text: str, ids: list[int]) -> None:
        self.text += text
        self.ids += ids
        self.ring()

    def close(self, end: Finished | PontilError) -> None:
        """The first end stands."""
        if self.end is None:
            self.end = end
            self.ring()

    def ring(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def take(self, patience: float | None = None) -> Delta | Finished | None:
        """What there is; None when nothing came for `patience` seconds. Raises the error that ended the request."""
        if not self.ids and self.end is None:
            await self.wait(patience)
        if self.ids or self.text:
            delta = Delta(self.text, self.ids)
            self.text, self.ids = "", []
            return delta
        if isinstance(self.end, PontilError):
            raise self.end
        return self.end

    async def wait(self, patience: float | None) -> None:
        """A timer costs less than asyncio.wait_for, which starts a task for every token."""
        loop = asyncio.get_running_loop()
        self.waiter = loop.create_future()
        timer = None if patience is None else loop.call_later(patience, self.ring)
        try:
            await self.waiter
        finally:
            self.waiter = None
            if timer is not None:
                timer.cancel()
