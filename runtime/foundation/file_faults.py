# SPDX-License-Identifier: Apache-2.0
"""Faults of files that may pass: a disk that is full, fails or is busy now, and may be used later."""

import errno
import sqlite3

PASSING_NUMBERS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# SQLite says of a file beside the database that cannot be made for lack of room that it cannot be opened.
PASSING_CODES = frozenset({
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CANTOPEN,
})  # fmt: skip


def may_pass(error: OSError | sqlite3.Error) -> bool:
    """Return whether the same might succeed later, with nothing changed but the disk."""
    if isinstance(error, OSError):
        return error.errno in PASSING_NUMBERS
    # The lower byte is the code, the rest tells more of it.
    return getattr(error, "sqlite_errorcode", -1) & 0xFF in PASSING_CODES
