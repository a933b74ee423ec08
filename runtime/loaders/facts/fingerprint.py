# SPDX-License-Identifier: Apache-2.0
"""A cheap identity of weights: equal for the same bytes on two hosts, different for another fine-tune.

Reading every byte of a large model to identify it would take minutes; a few hundred kilobytes spread over each file
distinguish fine-tunes as well. Paths and times are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

SAMPLES = 64
SAMPLE_BYTES = 4096


class HasFingerprint(Protocol):
    """A model's configuration."""

    def fingerprint(self) -> str: ...


def fingerprint(config: HasFingerprint, files: Iterable[Path], form: str = "") -> str:
    """Hash the configuration, the `form` of the files' weights if there are several, and samples of each file, in the
    order given, to 16 hexadecimal digits."""
    digest = hashlib.sha256((config.fingerprint() + form).encode())
    for path in files:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            for index in range(SAMPLES):
                file.seek(max(size - SAMPLE_BYTES, 0) * index // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]
