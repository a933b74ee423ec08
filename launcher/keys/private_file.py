# SPDX-License-Identifier: Apache-2.0
"""Secret files: read only if no other user of this machine can read them."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from pontil.launcher.foundation.errors import OptionError


@dataclass(frozen=True, slots=True)
class PrivateFile:
    """A secret file. `kind` names it in a sentence; `remedy` says how to create one, for the end of a sentence. At most
    `most` bytes are read."""

    path: Path
    kind: str
    remedy: str
    most: int

    def read(self) -> bytes:
        """Return the content. Raises OptionError if it cannot be read, or if others can read it."""
        try:
            # Opening a pipe must not block until it has a writer.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                self.check_privacy(os.fstat(descriptor))
                return file.read(self.most)
        except OSError as error:
            raise OptionError(f"The {self.kind} {self.path} cannot be read ({error.strerror}): {self.remedy}") from None

    def check_privacy(self, about: os.stat_result) -> None:
        """Check that only the owner can read the file. Access that root has granted to a group (or, by an access list,
        to us) is accepted."""
        if not stat.S_ISREG(about.st_mode):
            raise OptionError(f"The {self.kind} {self.path} is no regular file: {self.remedy}")
        is_from_root = about.st_uid == 0 and os.geteuid() != 0
        if about.st_mode & (0o027 if is_from_root else 0o077):
            raise OptionError(
                f"The {self.kind} {self.path} is open to other users of this machine: run chmod 600 on it, and make "
                "new keys if somebody may have read it."
            )
