# SPDX-License-Identifier: Apache-2.0
"""The key file of a system: one secret, made once and copied to each of its hosts."""

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from pontil.launcher.errors import LaunchError, OptionError

SECRET_BYTES = 32
FORMAT = "pontil-keys-1"
# Far more than a key file is.
MOST_BYTES = 4096
HEADING = """\
# The keys of one pontil system, the same on each of its hosts. Whoever can read them can read and send every request.
"""


def make_key_file(path: Path, *, force: bool = False) -> None:
    """A new secret, readable by its owner alone. It is there whole or not at all. Raises LaunchError."""
    text = f"{HEADING}{FORMAT} {secrets.token_hex(SECRET_BYTES)}\n"
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        written = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(written, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(written)
            # A link, unlike a renaming, never takes another file's place.
            os.replace(draft, path) if force else os.link(draft, path)
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


def read_key_file(path: Path) -> str:
    """Its secret, in hexadecimal. Raises OptionError when there is none, or not for us alone."""
    try:
        # Opening a pipe must not wait for its writer.
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(opened, "rb") as file:
            check_privacy(path, os.fstat(opened))
            text = file.read(MOST_BYTES)
    except OSError as error:
        raise OptionError(
            f"The key file {path} cannot be read ({error.strerror}): `pontil keys new` makes one, for all hosts."
        ) from None
    return secret_in(path, text)


def check_privacy(path: Path, about: os.stat_result) -> None:
    """The owner's alone. What root has handed to a group (or, with an access list, to us) is root's to answer for."""
    if not stat.S_ISREG(about.st_mode):
        raise OptionError(f"The key file {path} is no regular file: `pontil keys new` makes one, for all hosts.")
    handed = about.st_uid == 0 and os.geteuid() != 0
    if about.st_mode & (0o027 if handed else 0o077):
        raise OptionError(
            f"The key file {path} is open to other users of this machine: run chmod 600 on it, and make new keys if "
            "somebody may have read it."
        )


def secret_in(path: Path, text: bytes) -> str:
    lines = [line for line in text.decode(errors="replace").splitlines() if line.strip() and line[0] != "#"]
    found = re.fullmatch(rf"{FORMAT} ([0-9a-f]{{{2 * SECRET_BYTES}}})", lines[0].strip(), re.ASCII) if lines else None
    if found is None or len(lines) > 1 or len(text) == MOST_BYTES:
        raise OptionError(f"{path} is not a key file of this version: `pontil keys new` makes one, for all hosts.")
    return found[1]
