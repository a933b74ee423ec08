# SPDX-License-Identifier: Apache-2.0
"""A lease that a request asks for on the beginning of its prompt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.accounting.ledger import LedgerEntry

UNTOLD = "the worker that was to keep the prefix did not say that it does"
HEADER, REFUSED_HEADER = "x-pontil-lease", "x-pontil-lease-refused"


@dataclass(slots=True, eq=False)
class LeaseWish:
    """A lease of `seconds` on the first `tokens` of a prompt, in a worker of this `group`, for the API key `owner`. If
    it `must` be granted, the request fails where there is no room, and is billed its prompt once it is. It is `granted`
    on so many bytes when a worker says so; else a `reason` says why not. While its request is open, it is in `wishes`.
    A worker `has_room` for it, by incarnation, as far as is known. `disown` gives up one that nobody was told of."""

    id: str
    group: str | None
    owner: str
    seconds: int
    tokens: int
    must: bool
    wishes: "dict[str, LeaseWish]" = field(repr=False)
    has_room: Callable[[str], bool] = field(repr=False)
    disown: "Callable[[LeaseWish], None]" = field(repr=False)
    entry: LedgerEntry | None = None
    granted: int = 0
    reason: str | None = None
    asks: bool = True
    covers: tuple[str, ...] = ()
    # The tokens of a new lease: those of one that was extended had been computed before.
    made: int = 0

    @property
    def headers(self) -> Mapping[str, str]:
        """The header that says what became of it, once that is known."""
        if self.granted:
            return {HEADER: self.id}
        return {} if self.reason is None else {REFUSED_HEADER: self.reason}

    def told(self) -> Mapping[str, Any]:
        """Return it as a Submit has it."""
        return {"id": self.id, "owner": self.owner, "seconds": self.seconds, "tokens": self.tokens, "must": self.must}

    def open(self, entry: LedgerEntry) -> None:
        self.entry, self.wishes[self.id] = entry, self

    def close(self) -> None:
        """Take note that its request has ended. A lease beside an answer that is granted later is released: nobody was
        told of it."""
        self.wishes.pop(self.id, None)
        if self.asks and not self.must and not self.granted and self.reason is None:
            self.disown(self)
            self.refuse(UNTOLD)

    def renew(self, name: str, size: int) -> None:
        """Take note that the lease of this name is on the same, and was extended."""
        self.id, self.granted, self.asks = name, size, False

    def refuse(self, reason: str) -> None:
        self.reason, self.asks = reason, False

    def grant(self, size: int, tokens: int) -> None:
        self.granted, self.made, self.reason = size, tokens, None
        if self.must and self.entry is not None:
            self.entry.answered = True
