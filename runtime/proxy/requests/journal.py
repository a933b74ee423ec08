# SPDX-License-Identifier: Apache-2.0
"""The record of a request from which another proxy goes on with it, as the request sees it."""

from typing import Protocol

from pontil.runtime.accounting.counts import Usage


class Journal(Protocol):
    """The record of a request."""

    def note(self) -> bool:
        """Record the request as it is now; return whether it could be."""

    def close(self, billed: Usage, finish: str) -> None:
        """Record its end, before that is in the usage log."""

    def let_go(self) -> None:
        """Take note that its end is in the usage log, or on its way there."""

    def await_reader(self, finish: str) -> bool:
        """Leave the request, in flight no more, to a reader who may come back, or let it end so; return if it is."""
