# SPDX-License-Identifier: Apache-2.0
"""Faults of files that may pass: a disk that is full, fails or is busy now, and may be used later."""

import errno
import sqlite3

PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def may_pass(error: OSError | sqlite3.Error) -> bool:
    """Return whether the same might succeed later, with nothing changed but the disk. A database that is damaged, or is
    none, is no OperationalError."""
    if isinstance(error, OSError):
        return error.errno in PASSING
    return isinstance(error, sqlite3.OperationalError)
