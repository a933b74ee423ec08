# SPDX-License-Identifier: Apache-2.0
"""The keys that open this server, as digests: a key itself is only ever seen while it is compared."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose key was shown. Only the admin key makes an `admin`, whatever a client is called."""

    name: str
    admin: bool = False


ADMIN = Caller("admin", admin=True)


@dataclass(frozen=True, slots=True)
class Keyring:
    """`callers` are names with SHA-256 digests in hexadecimal, several of which may be one caller's; `admin` is the
    digest of the key that also opens /admin/, where there is one."""

    callers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    admin: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, callers: Sequence[Sequence[str]], admin: str | None) -> "Keyring":
        """From the values that the supervisor sends."""
        return cls(tuple((name, digest) for name, digest in callers), admin)

    @property
    def guards(self) -> bool:
        """Whether a key is needed at all."""
        return bool(self.callers)

    def caller(self, key: bytes) -> Caller | None:
        """Whose key it is. Every key is compared, each in constant time, so that how long it takes says nothing."""
        shown = hashlib.sha256(key).hexdigest()
        found: Caller | None = None
        for name, digest in self.callers:
            if hmac.compare_digest(shown, digest):
                found = Caller(name)
        if self.admin is not None and hmac.compare_digest(shown, self.admin):
            found = ADMIN
        return found
