# SPDX-License-Identifier: Apache-2.0
"""The key file of a system: one secret, made once and copied to each of its hosts."""

import os
import re
import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from pontil.launcher.child.child import Child
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.keys.private_file import PrivateFile

SECRET_BYTES = 32
FORMAT = "pontil-keys-1"
# Upper limit in bytes, far above the size of a key file.
MOST_BYTES = 4096
REMEDY = "`pontil keys new` makes one, for all hosts."
HEADING = """\
# The keys of one pontil system, the same on each of its hosts. Whoever can read them can read and send every request.
"""


def make_key_file(path: Path, *, force: bool = False) -> None:
    """Write a new secret, readable only by its owner. The file appears complete or not at all. Raises LaunchError."""
    text = HEADING + key_text(secrets.token_hex(SECRET_BYTES))
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            # A link, unlike a rename, never replaces an existing file.
            os.replace(draft, path) if force else os.link(draft, path)
            sync_folder(path.parent)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()
    except FileExistsError:
        raise LaunchError(
            f"{path} is there already, and a system with its keys would be locked out: give --force to replace it, or "
            "another --out."
        ) from None
    except OSError as error:
        raise LaunchError(f"The key file {path} cannot be written: {error.strerror}.") from None


def sync_folder(folder: Path) -> None:
    """Have the names in a folder be on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def key_text(secret: str) -> str:
    """Return the line of a key file that has this secret."""
    return f"{FORMAT} {secret}\n"


def read_key_file(path: Path) -> str:
    """Return the secret in hexadecimal. Raises OptionError if there is no file, or if others can read it."""
    return secret_in(path, PrivateFile(path, "key file", REMEDY, MOST_BYTES).read())


def secret_in(path: Path, text: bytes) -> str:
    lines = [line for line in text.decode(errors="replace").splitlines() if line.strip() and line[0] != "#"]
    match = re.fullmatch(rf"{FORMAT} ([0-9a-f]{{{2 * SECRET_BYTES}}})", lines[0].strip(), re.ASCII) if lines else None
    if match is None or len(lines) > 1 or len(text) == MOST_BYTES:
        raise OptionError(f"{path} is not a key file of this version: {REMEDY}")
    return match[1]


def change_keys(path: Path, children: Collection[Child]) -> str:
    """Read the keys again and return the outcome in words. A running process keeps the keys that it was started with:
    its connections go on, and no peer is cut off before it has the new keys too. Workers beside a proxy have those that
    it starts with: before that, a worker that dies would come back with keys that no proxy accepts."""
    try:
        secret = read_key_file(path)
    except OptionError as error:
        return f"the keys stay what they were: {error.message}"
    changed_children = [child for child in children if child.plan.config.get("keys") != secret]
    has_proxy = any(child.plan.is_proxy for child in children)
    for child in changed_children:
        if child.plan.is_proxy or not has_proxy:
            child.plan = child.plan.with_keys(secret)
    if not changed_children:
        return f"the keys in {path} are the ones in use"
    return (
        f"new keys from {path} for every {'proxy' if has_proxy else 'process'} that starts from now on; what runs "
        "keeps the old ones: once each host has read them, restart the proxy, and the workers follow by themselves"
    )


def follow(proxy: Child, children: Iterable[Child]) -> None:
    """Have workers start with the keys of a proxy that starts beside them."""
    for child in children:
        if not child.plan.is_proxy:
            child.plan = child.plan.with_keys(proxy.plan.config.get("keys"))
