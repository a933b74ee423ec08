# SPDX-License-Identifier: Apache-2.0
"""Encryption of KV blocks on their way across a network: they can be neither read nor changed.

Each connection begins with a temporary public key from either side (X25519). The shared secret of this exchange and the
system's own key yield two keys, one for each direction, as in the pattern NNpsk0 of the Noise protocols: only holders
of the system's key can derive them, and learning that key later does not decrypt what was recorded. Everything after
that is AES-256-GCM, in pieces numbered from 0 in each direction: a piece that is changed, repeated, left out or out of
order does not decrypt.
"""

import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pontil.runtime.errors import TransferError

PUBLIC_BYTES = 32
TAG_BYTES = 16
NONCE_BYTES = 12
BROKEN = "what came was changed on the way, or the peer does not have the same keys"


class BlockCipher:
    """The cipher of one direction of a connection. Encryption makes a piece `TAG_BYTES` longer."""

    def __init__(self, key: bytes) -> None:
        self.cipher, self.number = AESGCM(key), 0

    def nonce(self) -> bytes:
        """Return the nonce of the next piece: never the same twice under one key."""
        self.number += 1
        return (self.number - 1).to_bytes(NONCE_BYTES, "big")

    def close(self, piece: bytes | bytearray | memoryview) -> bytes:
        return self.cipher.encrypt(self.nonce(), piece, None)

    def open(self, sealed: bytes | bytearray | memoryview) -> bytes:
        """Decrypt a piece. Raise TransferError unless it is the next piece as the peer encrypted it."""
        try:
            return self.cipher.decrypt(self.nonce(), sealed, None)
        except InvalidTag:
            raise TransferError(BROKEN) from None


class CipherPair:
    """The ciphers of both directions, as one side uses them."""

    def __init__(self, sending: bytes, receiving: bytes) -> None:
        self.sending, self.receiving = BlockCipher(sending), BlockCipher(receiving)


class KeyAgreement:
    """One side's part in agreeing on a connection's keys. `public` is sent to the peer unencrypted."""

    def __init__(self) -> None:
        self.private = X25519PrivateKey.generate()
        self.public = self.private.public_key().public_bytes_raw()

    def as_client(self, seed: bytes, theirs: bytes) -> CipherPair:
        """Return the client's ciphers, given the server's public key. Raise TransferError when that is not a valid
        key."""
        to_server, to_client = keys_of(seed, self.shared(theirs), self.public + theirs)
        return CipherPair(to_server, to_client)

    def as_server(self, seed: bytes, theirs: bytes) -> CipherPair:
        to_server, to_client = keys_of(seed, self.shared(theirs), theirs + self.public)
        return CipherPair(to_client, to_server)

    def shared(self, theirs: bytes) -> bytes:
        try:
            return self.private.exchange(X25519PublicKey.from_public_bytes(theirs))
        except ValueError:
            raise TransferError("the peer sent a key that is none") from None


def keys_of(seed: bytes, shared: bytes, said: bytes) -> tuple[bytes, bytes]:
    """Return the keys towards the server and towards the client, of 32 bytes each (HMAC-SHA256 as in RFC 5869)."""
    root = hmac.digest(seed, shared + said, "sha256")
    return hmac.digest(root, b"to server\x01", "sha256"), hmac.digest(root, b"to client\x01", "sha256")
