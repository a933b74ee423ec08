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
PUBLIC_PREFIX = bytes.fromhex("302a300506032b6570032100")
PUBLIC_PEM = re.compile(rb"\s*-----BEGIN PUBLIC KEY-----\s([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----\s*")
HEX = re.compile(rb"[0-9a-f]{64}")
MOST_BYTES = 4096
REMEDY = "`openssl genpkey -algorithm ed25519 -out FILE` makes one."


def receipt_seed(named: str | None, cache: Path, *, is_needed: bool) -> str | None:
    """Return the secret bytes of the key, in hexadecimal: of the file that is `named`, else of the one in the cache
    directory, which is made where it is missing. None where it cannot be made, or none is needed: such a launch signs
    nothing. Raises OptionError for a file that is no key, or that others can read."""
    path = cache.expanduser() / FILE if named is None else Path(named)
    if not is_needed or (named is None and not path.exists() and not make(path)):
        return None
    text = PrivateFile(path, "receipt key", REMEDY, MOST_BYTES).read()
    return seed_in(path, text).hex()


def seed_in(path: Path, text: bytes) -> bytes:
    body = pem_body(PEM, text)
    if len(body) != len(PREFIX) + SEED_BYTES or not body.startswith(PREFIX):
        raise OptionError(f"{path} has no Ed25519 key in PEM: {REMEDY}")
    return body.removeprefix(PREFIX)


def read_public_key(given: str, flag: str) -> bytes:
    """Return the public key that is given by this flag: in hexadecimal, as receipts have it, or in a file, so or in
    PEM. Raises OptionError."""
    text = given.encode()
    if not HEX.fullmatch(text):
        try:
            with Path(given).open("rb") as file:
                text = file.read(MOST_BYTES)
        except OSError as error:
            raise OptionError(f"{flag} {given} is no key in hexadecimal, and no file ({error.strerror}).") from None
    if match := HEX.fullmatch(text.strip()):
        return bytes.fromhex(match[0].decode())
    body = pem_body(PUBLIC_PEM, text)
    if len(body) != len(PUBLIC_PREFIX) + SEED_BYTES or not body.startswith(PUBLIC_PREFIX):
        raise OptionError(f"{given} has no public Ed25519 key: `openssl pkey -in KEY -pubout` shows that of a key.")
    return body.removeprefix(PUBLIC_PREFIX)


def pem_body(form: re.Pattern[bytes], text: bytes) -> bytes:
    """Return the bytes in a PEM of this form; none of what is not."""
    match = form.fullmatch(text)
    try:
        return b"" if match is None else base64.b64decode(b"".join(match[1].split()), validate=True)
    except binascii.Error:
        return b""


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
