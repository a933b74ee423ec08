# SPDX-License-Identifier: Apache-2.0
"""The keys of one system, all derived from the secret in its key file.

Every process that has the secret is a member of the system, in any role: the keys tell members from others, not members
apart. Each use has a key of its own, derived under its own name (HMAC-SHA256 as in RFC 5869, expanding), so that no key
reveals another.
"""

import hmac
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

SECRET_BYTES = 32
PURPOSE = b"pontil keys 1 "


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, in libzmq's form: Z85 text of 32 bytes each."""

    public: bytes
    secret: bytes = field(repr=False)

    @property
    def raw_public(self) -> bytes:
        """The public key as a peer shows it in a handshake: 32 bytes."""
        return z85.decode(self.public)

    @classmethod
    def of(cls, seed: bytes) -> "KeyPair":
        secret = z85.encode(seed)
        return cls(zmq.curve_public(secret), secret)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one system. Servers prove themselves with `server`, clients with `client`; `transfer` is the root key
    from which the keys that protect KV blocks are derived, `kept` signs what is told about kept prompts."""

    server: KeyPair
    client: KeyPair
    transfer: bytes = field(repr=False)
    kept: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: str) -> "Keys":
        """Derive the keys from SECRET_BYTES in hexadecimal, as the launcher passes them on."""
        root = bytes.fromhex(secret)
        assert len(root) == SECRET_BYTES, "the launcher has checked it"
        server, client = (KeyPair.of(derived(root, purpose)) for purpose in (b"server", b"client"))
        return cls(server, client, derived(root, b"kv"), derived(root, b"kept prompts"))


def derived(root: bytes, purpose: bytes) -> bytes:
    """Return a key of 32 bytes for one purpose."""
    return hmac.digest(root, PURPOSE + purpose + b"\x01", "sha256")


def is_network(endpoint: str) -> bool:
    """Return whether this endpoint is reached over a network: guarded by keys, where there are any, and cut off when a
    link is. Socket files are guarded by their folder."""
    return endpoint.startswith("tcp://")
