# SPDX-License-Identifier: Apache-2.0
"""Routes in the place of a room that is left out of an installation (runtime/foundation/entry_points.py)."""

import re
from typing import NoReturn

from sanic import Request

from pontil.http.access.endpoint import Endpoint, Handler, RouteAccess
from pontil.http.schema.parameter import Schema
from pontil.runtime.errors import RequestError

REPLY: Schema = {"type": "object"}


class LeftOutRoom:
    """A room of which only a refusal is here: 404 and a sentence that says why. `asked` are methods, paths and who may
    ask."""

    def __init__(self, sentence: str, *asked: tuple[str, str, RouteAccess]) -> None:
        self.sentence, self.asked = sentence, asked

    def endpoints(self, *_: object) -> tuple[Endpoint, ...]:
        return tuple(
            Endpoint(
                method, path, self.refusal(path), "Left out of this installation.", REPLY, errors=(404,), door=door
            )
            for method, path, door in self.asked
        )

    def refusal(self, path: str) -> Handler:
        """Return the handler of a path. Its name is the route's in the app, where no two may be alike."""

        async def refuse(request: Request) -> NoReturn:
            raise RequestError(self.sentence, status=404, code="not_installed")

        refuse.__name__ = f"refuse_{re.sub(r'[^a-z]', '_', path)}"
        return refuse

    async def close(self, *_: object) -> None:
        return
