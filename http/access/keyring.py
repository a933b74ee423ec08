# SPDX-License-Identifier: Apache-2.0
"""The keys of this server, kept as digests; the plain key exists only while it is compared."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.proxy.requests.ticket import UNLIMITED, Allowance


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
        named = tuple((name, Allowance(**dict(settings))) for name, settings in allowances)
        return cls(tuple((name, digest) for name, digest in callers), admin, named)

    @property
    def guards(self) -> bool:
        """Return whether a key is needed at all."""
        return bool(self.callers)

    def caller(self, key: bytes) -> Caller | None:
        """Return the key's owner, None for a wrong key. Every key is compared in constant time, so that the duration
        reveals nothing."""
        shown = hashlib.sha256(key).hexdigest()
        found: Caller | None = None
        for name, digest in self.callers:
            if hmac.compare_digest(shown, digest):
                found = Caller(name, allowance=dict(self.allowances).get(name, Allowance()))
        if self.admin is not None and hmac.compare_digest(shown, self.admin):
            found = ADMIN
        return found
