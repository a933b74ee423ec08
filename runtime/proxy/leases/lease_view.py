# SPDX-License-Identifier: Apache-2.0
"""A lease as a proxy knows it, and what a worker may say of one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

from pontil.runtime.accounting.usage_tables import CLOSED, OPEN, LeaseRow
from pontil.runtime.cache.adaptation import Adaptation
from pontil.runtime.cache.leases.lease import (
    EXPIRED,
    HELD,
    REFUNDED,
    RELEASED,
    UNKNOWN_PROMPT,
    LeasedPrompt,
    LeaseTerm,
)
from pontil.runtime.cache.prefix import KEY_BYTES
from pontil.runtime.errors import MalformedFrame
from pontil.runtime.proxy.routing.held_prefixes import HeldPrefixes, short_key, short_keys_of
from pontil.runtime.wire.lease_messages import REFUSED
from pontil.runtime.wire.messages import LeaseState

STATES = (HELD, EXPIRED, RELEASED, REFUNDED, REFUSED)
# The most byte-seconds of one lease: exact in SQLite's integers.
MOST_BYTE_SECONDS = 1 << 62
MOST_SECONDS, MOST_NAME, MOST_PATH = 1 << 31, 512, 4096


@dataclass(slots=True, eq=False)
class LeaseView:
    """A lease of an API key, the `owner`, that the `worker` of this incarnation holds; None: it was `lost` at that time
    with the `last_worker`, of this `worker_name`, and may be found by its successor. It is billed by the `proxy`, which
    has the `target` take it from its worker, if one is to. All of these workers are in the `group` of this key. It came
    to its worker by so many `moves`; `asked` is the highest number of them by which this proxy had one take it. `term`
    is in readings of this proxy's clock, `since_epoch` the time of its beginning in seconds since 1970. `keys` are
    those of its blocks, one behind the other; routing knows of them in `pinned`. They are computed from the
    `prompt`."""

    id: str
    owner: str
    tokens: int
    proxy: str
    worker_name: str
    worker: str | None
    term: LeaseTerm
    since_epoch: float
    keys: bytes = field(repr=False)
    prompt: LeasedPrompt = UNKNOWN_PROMPT
    target: str | None = None
    lost: float | None = None
    last_worker: str | None = None
    moves: int = 0
    asked: int = 0
    group: str | None = None
    pinned: HeldPrefixes | None = field(default=None, repr=False)

    @property
    def is_held(self) -> bool:
        return self.term.state == HELD

    @property
    def is_lost(self) -> bool:
        return self.is_held and self.worker is None

    @property
    def short_keys(self) -> Sequence[int]:
        return short_keys_of(self.keys)

    @property
    def last_key(self) -> int:
        """The key of its last block, as routing knows it; 0 where it is not known."""
        return short_key(self.keys[-KEY_BYTES:])

    def next_move(self) -> int:
        """Return the number of the move by which a worker is to take it: another one for each."""
        self.asked = max(self.asked, self.moves) + 1
        return self.asked

    def yields_to(self, message: LeaseState, name: str) -> bool:
        """Return whether it is with the worker of this name that says so, or was with another one before: of two that
        were given it by as many moves, every proxy has to take the same one, in whatever order it hears them. A process
        comes after the one whose name it has."""
        if self.worker is None or message.moves != self.moves or name == self.worker_name:
            return message.moves >= self.moves
        return message.sender >= self.worker

    def pin(self, prefixes: HeldPrefixes | None) -> None:
        """Have routing know of its keys as those of this worker; None: of no worker."""
        if self.pinned is prefixes:
            return
        keys = self.short_keys
        if self.pinned is not None:
            self.pinned.end_lease(keys)
        if prefixes is not None:
            prefixes.lease(keys)
        self.pinned = prefixes

    def row(self, model: str, now: float) -> LeaseRow:
        """Return its row in the usage log. While it is held, its row says what is held of it so far."""
        term, amounts = self.term, self.term.amounts(now)
        return LeaseRow(
            self.id,
            self.proxy,
            self.owner,
            model,
            self.worker_name,
            OPEN if self.is_held else CLOSED,
            term.state,
            term.reason,
            self.tokens,
            term.size,
            term.seconds,
            amounts.granted,
            amounts.held,
            amounts.released,
            amounts.refunded,
            self.since_epoch,
        )


def check_state(message: LeaseState) -> None:
    """Raise MalformedFrame for what no lease can be."""
    names = message.lease_id, message.owner, message.proxy, message.reason or "", message.salt, message.adapter
    lengths = max(map(len, names))
    fits = lengths <= MOST_NAME and len(message.adapter_directory) <= MOST_PATH
    if message.state not in STATES or not fits or len(message.keys) % KEY_BYTES:
        raise MalformedFrame(f"no lease has the state {message.state!r:.40}, or such names or keys")
    if not 0 <= message.seconds <= MOST_SECONDS or not 0 <= message.size * message.seconds <= MOST_BYTE_SECONDS:
        raise MalformedFrame(f"no lease is of {message.size} bytes for {message.seconds} seconds")
    if not 0 <= message.moves <= MOST_SECONDS:
        raise MalformedFrame(f"no lease has moved {message.moves} times")
    if message.tokens < 0 or not isfinite(message.age) or not 0.0 <= message.age <= MOST_SECONDS:
        raise MalformedFrame(f"no lease has {message.tokens} tokens, or began {message.age} seconds ago")
    if not 0 <= message.adapter_start <= max(0, message.tokens):
        raise MalformedFrame(f"no lease has an adapter from the position {message.adapter_start} on")
    if message.prompt and not prompt_of(message).has(message.tokens):
        raise MalformedFrame(f"no prompt of {message.tokens} tokens has {len(message.prompt)} bytes")


def prompt_of(message: LeaseState) -> LeasedPrompt:
    adapted = Adaptation(message.adapter, message.adapter_start)
    return LeasedPrompt(message.prompt, message.salt, adapted, message.adapter_directory)
