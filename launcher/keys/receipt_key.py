# SPDX-License-Identifier: Apache-2.0
"""The key that signs receipts: Ed25519, in a private file as OpenSSL writes them (PKCS #8, RFC 8410, in PEM)."""

import base64
import binascii
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.keys.private_file import PrivateFile

# Name of the one that is made where none is named, in the cache directory.
FILE = "receipt.key"
SEED_BYTES = 32
# Everything of such a key before its secret bytes.
PREFIX = bytes.fromhex("302e020100300506032b657004220420")
PEM = re.compile(rb"\s*-----BEGIN PRIVATE KEY-----\s([A-Za-z0-9+/=\s]+)-----END PRIVATE KEY-----\s*")
MOST_BYTES = 4096
REMEDY = "`openssl genpkey -algorithm ed25519 -out FILE` makes one."


def receipt_seed(named: str | None, cache: Path) -> str | None:
    """Return the secret bytes of the key, in hexadecimal: of the file that is `named`, else of the one in the cache
    directory, which is made where it is missing. None where it cannot be made: such a launch signs nothing. Raises
    OptionError for a file that is no key, or that others can read."""
    path = cache.expanduser() / FILE if named is None else Path(named)
    if named is None and not path.exists() and not make(path):
        return None
    text = PrivateFile(path, "receipt key", REMEDY, MOST_BYTES).read()
    return seed_in(path, text).hex()


def seed_in(path: Path, text: bytes) -> bytes:
    match = PEM.fullmatch(text)
    try:
        body = b"" if match is None else base64.b64decode(b"".join(match[1].split()), validate=True)
    except binascii.Error:
        body = b""
    if len(body) != len(PREFIX) + SEED_BYTES or not body.startswith(PREFIX):
        raise OptionError(f"{path} has no Ed25519 key in PEM: {REMEDY}")
    return body.removeprefix(PREFIX)


def pem_of(seed: bytes) -> str:
    return f"-----BEGIN PRIVATE KEY-----\n{base64.b64encode(PREFIX + seed).decode()}\n-----END PRIVATE KEY-----\n"


def make(path: Path) -> bool:
    """Write a new key, readable only by its owner, unless another process has just made it. The file appears complete
    or not at all. Return whether one is there."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(pem_of(secrets.token_bytes(SEED_BYTES)))
                file.flush()
                os.fsync(descriptor)
            with suppress(FileExistsError):
                # A link, unlike a rename, never replaces an existing file.
                os.link(draft, path)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()
    except OSError:
        return False
    return True
