# SPDX-License-Identifier: Apache-2.0
"""Requests to one server over one session."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from pontil.launcher.tools.bench.stream_client import RequestFailed, RequestRefused, answer_to, printable, refusal

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

MOST_TEXT = 1 << 24


class HttpClient:
    """A server at `url`, asked with an authorization header, if there is one."""

    def __init__(self, session: "ClientSession", url: str, key: Mapping[str, str] | None = None) -> None:
        self.session, self.url, self.key = session, url.rstrip("/"), key

    def post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> "AbstractAsyncContextManager[ClientResponse]":
        """Send a body and give the answer to read. Raises RequestFailed."""
        return answer_to(self.session, f"{self.url}{path}", body, {**(self.key or {}), **(headers or {})})

    async def get(self, path: str) -> bytes:
        """Return what the server answers. Raises RequestFailed."""
        from aiohttp import ClientError

        try:
            async with self.session.get(f"{self.url}{path}", headers=dict(self.key or {})) as response:
                data = await response.content.read(MOST_TEXT) if response.status != 200 else await response.read()
                if response.status != 200:
                    raise RequestRefused(response.status, refusal(data))
                return data
        except (ClientError, OSError) as error:
            raise RequestFailed(printable(str(error) or type(error).__name__)) from None
