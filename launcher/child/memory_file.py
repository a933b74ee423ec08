# SPDX-License-Identifier: Apache-2.0
"""A file in memory by which a process hands something of any size, a secret too, to one that it starts."""

import os

OWNER_ONLY = 0o600


def memory_file(name: str, content: bytes) -> int:
    """Return the descriptor of a file with this content, to be read from its beginning, which only this user can open.
    It has no name in any folder, and is gone with the last process that has it open. Raises OSError."""
    with os.fdopen(os.memfd_create(name, os.MFD_CLOEXEC), "wb") as file:
        os.fchmod(file.fileno(), OWNER_ONLY)
        file.write(content)
        file.seek(0)
        return os.dup(file.fileno())
