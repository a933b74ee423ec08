# SPDX-License-Identifier: Apache-2.0
"""/admin/events: one snapshot a second for all viewers, as server-sent events."""

import asyncio
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import empty

from pontil.http.stream.reply import CONTENT_TYPE, HEADERS, EventStreamResponse
from pontil.http.stream.reply_shape import event
from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.live_snapshot import LiveSnapshot

# Seconds between two snapshots.
EVERY = 1.0
MOST_VIEWERS = 32


class LiveEvents:
    """The snapshots of one proxy. Each is taken and serialized once, and only while somebody looks. A viewer that does
    not read keeps one snapshot in its connection, and gets the newest when it reads again."""

    def __init__(self, snapshot: LiveSnapshot) -> None:
        self.snapshot = snapshot
        self.viewers = self.number = 0
        self.newest = b""
        self.changed = asyncio.Event()
        self.closed = False
        self.task: asyncio.Task[None] | None = None

    async def admin_events(self, request: Request) -> HTTPResponse | None:
        """Send snapshots until the viewer leaves, its key is revoked or the proxy stops. Raises Unavailable for one
        viewer too many."""
        if request.method == "HEAD":
            return empty(200, headers=HEADERS | {"content-type": CONTENT_TYPE})
        if self.viewers >= MOST_VIEWERS:
            raise Unavailable(f"{MOST_VIEWERS} pages are open, which is all that are served: close one")
        self.viewers += 1
        try:
            self.begin()
            response = await request.respond(EventStreamResponse(content_type=CONTENT_TYPE, headers=HEADERS))
            await self.show(request, response)
        finally:
            self.viewers -= 1
        return None

    async def show(self, request: Request, response: Any) -> None:
        seen_number = 0
        while not self.closed:
            if self.number == seen_number:
                await self.changed.wait()
                continue
            seen_number = self.number
            if not request.app.ctx.access.still_admits(request):
                break
            await response.send(self.newest)
        await response.eof()

    def begin(self) -> None:
        """Begin to take snapshots, unless that is done for other viewers already."""
        if self.task is None and not self.closed:
            self.publish()
            self.task = asyncio.get_running_loop().create_task(self.publish_forever())

    async def publish_forever(self) -> None:
        try:
            while True:
                await asyncio.sleep(EVERY)
                if not self.viewers:
                    return
                self.snapshot.proxy.metrics.threads.contain("events", self.publish)
        finally:
            self.task = None

    def publish(self) -> None:
        self.newest = event(self.snapshot.take())
        self.number += 1
        self.tell()

    def tell(self) -> None:
        """Wake all viewers."""
        change_event, self.changed = self.changed, asyncio.Event()
        change_event.set()

    async def close(self, *_: object) -> None:
        """End all streams, so that the server need not wait for them."""
        self.closed = True
        if self.task is not None:
            self.task.cancel()
        self.tell()
