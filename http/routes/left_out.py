# SPDX-License-Identifier: Apache-2.0
"""Routes of rooms that may be left out of an installation (runtime/foundation/entry_points.py)."""

from typing import NoReturn, Protocol

from sanic import Request

from pontil.http.access.endpoint import Endpoint, RouteAccess
from pontil.http.intake.body import BodyReader
from pontil.http.schema.parameter import Schema
from pontil.runtime.errors import RequestError
from pontil.runtime.foundation.entry_points import entry_point, missing
from pontil.runtime.proxy.proxy import Proxy


class RoutedRoom(Protocol):
    """The routes that such a room has for one proxy."""

    def endpoints(self, bodies: BodyReader) -> tuple[Endpoint, ...]: ...

    async def close(self, *_: object) -> None:
        """End what is open, before the server stops."""


class LeftOutRoom:
    """In the place of a room that is left out: what asks for it gets 404, with a sentence that says so."""

    def __init__(self, sentence: str, *asked: tuple[str, str, RouteAccess]) -> None:
        self.sentence, self.asked = sentence, asked

    def endpoints(self, bodies: BodyReader) -> tuple[Endpoint, ...]:
        reply: Schema = {"type": "object"}
        return tuple(
            Endpoint(method, path, self.refuse, "Left out of this installation.", reply, errors=(404,), door=door)
            for method, path, door in self.asked
        )

    async def refuse(self, request: Request) -> NoReturn:
        raise RequestError(self.sentence, status=404, code="not_installed")

    async def close(self, *_: object) -> None:
        return


def live_page(proxy: Proxy) -> RoutedRoom:
    if (sentence := missing("page")) is not None:
        return LeftOutRoom(sentence, ("GET", "/admin/ui", RouteAccess.PAGE))
    page: RoutedRoom = entry_point("page")(proxy)
    return page
