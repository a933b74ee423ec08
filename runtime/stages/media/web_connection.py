# SPDX-License-Identifier: Apache-2.0
"""A connection to one address of a host, and waits that have an end."""

import asyncio
import ssl
from collections.abc import Awaitable
from typing import TypeVar, cast

from pontil.runtime.stages.media.fetch_failed import FetchFailed

T = TypeVar("T")


class WebConnection(asyncio.StreamReaderProtocol):
    """The connection of one question, made by `open` and ended by `abort`, in whatever state it is."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        super().__init__(self.reader)
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Those of other loops are no subclass of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        super().connection_made(transport)

    async def open(self, address: str, port: int, trusted: ssl.SSLContext | None, name: str) -> None:
        """Connect to an IP address, which is not resolved again; with TLS under the host's name. Raises OSError."""
        loop, server = asyncio.get_running_loop(), name if trusted is not None else None
        await loop.create_connection(lambda: self, address, port, ssl=trusted, server_hostname=server)

    def write(self, data: bytes) -> None:
        assert self.transport is not None, "it was opened"
        self.transport.write(data)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


async def within(seconds: float, work: Awaitable[T], says: str) -> T:
    """Return or raise what `work` does. Raises FetchFailed, with what it `says`, where that takes longer. A work whose
    time is up, or whose waiter is cancelled, is cancelled too; no cancellation is lost, as `asyncio.wait_for` loses
    some before Python 3.12."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
        if task.done():
            return task.result()
    finally:
        # Marks an exception as retrieved, also one that nobody waits for any more.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        task.cancel()
    raise FetchFailed(says)
