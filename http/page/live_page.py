# SPDX-License-Identifier: Apache-2.0
"""The live page of one proxy: its routes, and the events that they show."""

from pontil.http.access.endpoint import Endpoint, RouteAccess
from pontil.http.intake.body import BODY_ERRORS, BodyReader
from pontil.http.page.change_routes import CHANGE, CHANGED, ChangeRoutes
from pontil.http.page.live_events import LiveEvents
from pontil.http.page.page_files import PageRoutes
from pontil.http.stream import reply_schema as reply
from pontil.runtime.proxy.live_snapshot import LiveSnapshot
from pontil.runtime.proxy.proxy import Proxy


class LivePage:
    def __init__(self, proxy: Proxy) -> None:
        self.proxy, self.live = proxy, LiveEvents(LiveSnapshot(proxy))

    def endpoints(self, bodies: BodyReader) -> tuple[Endpoint, ...]:
        """The live page, with what it shows and does."""
        files, live, changes = PageRoutes(), self.live, ChangeRoutes(self.proxy.changes, bodies)
        return (
            Endpoint("GET", "/admin/ui", files.admin_page, "The live page.", reply.TEXT, content_type="text/html",
                     door=RouteAccess.PAGE),
            Endpoint("GET", "/admin/ui/{file}", files.admin_page_file, "A file of the live page.", reply.TEXT,
                     errors=(404,), content_type="text/javascript", door=RouteAccess.PAGE),
            Endpoint("GET", "/admin/events", live.admin_events, "A snapshot of the server each second.",
                     reply.ANY_OBJECT, events=reply.ANY_OBJECT, errors=(503,), content_type="text/event-stream",
                     door=RouteAccess.ADMIN),
            Endpoint("POST", "/admin/workers/{worker}/{action}", changes.change_worker, "Drain, undrain or restart a "
                     "worker, or give it another role.", CHANGED, CHANGE, errors=(*BODY_ERRORS, 409, 503),
                     door=RouteAccess.ADMIN),
        )  # fmt: skip

    async def close(self, *_: object) -> None:
        """End all streams of events."""
        await self.live.close()
