# SPDX-License-Identifier: Apache-2.0
"""The keys of this server, kept as digests; the plain key exists only while it is compared. Wrong keys
of one address are counted."""

import hashlib
import hmac
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Any

from pontil.runtime.proxy.requests.ticket import UNLIMITED, Allowance

# Wrong keys per address and window that get a 401; further ones get a 429.
MOST_WRONG = 10
WINDOW_SECONDS = 60.0
# Oldest addresses are forgotten beyond this number.
MOST_ADDRESSES = 1024
# IPv6 prefix length that a provider usually assigns to one customer.
HOME_BITS = 64
LOG = logging.getLogger("pontil.http")


class FailedKeys:
    """Addresses, each with its window's start and count. A valid key is never refused: a client with an old key must
    not lock out others behind its address, and keys are too long to guess."""

    def __init__(self) -> None:
        self.book: dict[str, tuple[float, int]] = {}

    def note(self, address: str, now: float) -> int | None:
        """Count one failure. Returns the seconds to wait if the address has too many, else None."""
        place = place_of(address)
        window_start, count = self.book.get(place, (now, 0))
        if now - window_start >= WINDOW_SECONDS:
            window_start, count = now, 0
            del self.book[place]
        self.book[place] = window_start, count + 1
        while len(self.book) > MOST_ADDRESSES:
            del self.book[next(iter(self.book))]
        if count == MOST_WRONG:
            LOG.warning("%d wrong API keys came from %s within a minute", count + 1, place)
        return None if count < MOST_WRONG else max(1, math.ceil(window_start + WINDOW_SECONDS - now))


def place_of(address: str) -> str:
    """Return the unit that is counted: an IPv4 address, or the network of an IPv6 address."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return f"{IPv6Address(int(ip) >> HOME_BITS << HOME_BITS)}/{HOME_BITS}"
    return str(ip)


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a key and its permissions. `admin` needs the admin key, whatever a client's name is."""

    name: str
    admin: bool = False
    allowance: Allowance = Allowance()


ADMIN = Caller("admin", admin=True, allowance=UNLIMITED)


@dataclass(frozen=True, slots=True)
class Keyring:
    """The configured keys. `callers` are names with SHA-256 digests in hexadecimal; one caller may have several.
    `admin` is the digest of the key that also opens /admin/, if there is one. `allowances` holds the callers for whom
    the key file sets limits."""

    callers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    admin: str | None = field(default=None, repr=False)
    allowances: tuple[tuple[str, Allowance], ...] = ()

    @classmethod
    def of(
        cls, callers: Sequence[Sequence[str]], admin: str | None, allowances: Sequence[Sequence[Any]] = ()
    ) -> "Keyring":
        """Build a keyring from the values that the supervisor sends."""
        caller_allowances = tuple((name, Allowance.of(settings)) for name, settings in allowances)
        return cls(tuple((name, digest) for name, digest in callers), admin, caller_allowances)

    @property
    def guards(self) -> bool:
        """Return whether a key is needed at all."""
        return bool(self.callers)

    def knows(self, caller: str) -> bool:
        """Return whether this caller's requests are admitted: without keys, those of any."""
        known_names = [name for name, _ in self.callers] + [ADMIN.name] * (self.admin is not None)
        return not self.guards or caller in known_names

    def caller(self, key: bytes) -> Caller | None:
        """Return the key's owner, None for a wrong key. Every key is compared in constant time, so that the duration
        reveals nothing."""
        key_digest = hashlib.sha256(key).hexdigest()
        owner: Caller | None = None
        for name, digest in self.callers:
            if hmac.compare_digest(key_digest, digest):
                owner = Caller(name, allowance=dict(self.allowances).get(name, Allowance()))
        if self.admin is not None and hmac.compare_digest(key_digest, self.admin):
            owner = ADMIN
        return owner
