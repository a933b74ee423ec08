# SPDX-License-Identifier: Apache-2.0
"""The live page, where it is installed."""

from typing import Protocol

from pontil.http.access.endpoint import Endpoint, RouteAccess
from pontil.http.access.left_out import LeftOutRoom
from pontil.http.intake.body import BodyReader
from pontil.runtime.foundation.entry_points import entry_point, missing
from pontil.runtime.proxy.proxy import Proxy


class RoutedRoom(Protocol):
    """The routes that such a room has for one proxy."""

    def endpoints(self, bodies: BodyReader) -> tuple[Endpoint, ...]: ...

    async def close(self, *_: object) -> None:
        """End what is open, before the server stops."""


def live_page(proxy: Proxy) -> RoutedRoom:
    if (sentence := missing("page")) is not None:
        return LeftOutRoom(sentence, ("GET", "/admin/ui", RouteAccess.PAGE))
    page: RoutedRoom = entry_point("page")(proxy)
    return page
