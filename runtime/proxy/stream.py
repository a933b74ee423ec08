# SPDX-License-Identifier: Apache-2.0
"""One request as its reader holds it."""

from collections.abc import AsyncIterator, Callable

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.proxy.mailbox import Delta, Finished
from pontil.runtime.proxy.request import Request


class Stream:
    """Read it to its end or `cancel` it, whatever happens: cancelling a finished request does nothing."""

    def __init__(self, request: Request, cancel: Callable[[Request], None]) -> None:
        self.request = request
        self.cancel_request = cancel

    async def take(self, patience: float | None = None) -> Delta | Finished | None:
        """The next event; None when nothing came for `patience` seconds.

        Raises RequestError or Unavailable where the request could not be served (to its end).
        """
        return await self.request.mailbox.take(patience)

    async def __aiter__(self) -> AsyncIterator[Delta | Finished]:
        """Every event, Finished last."""
        while True:
            event = await self.take()
            if event is not None:
                yield event
            if isinstance(event, Finished):
                return

    def cancel(self) -> None:
        self.cancel_request(self.request)

    @property
    def route(self) -> str:
        """Names of the workers chosen, like prefill:0>decode:0."""
        return self.request.route.name

    @property
    def usage(self) -> Usage:
        """What has been delivered so far."""
        return self.request.usage
