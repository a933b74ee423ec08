# SPDX-License-Identifier: Apache-2.0
"""The files and folders that are synced, in order."""

import os
from pathlib import Path

import pytest


def note_syncs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list to which each synced file or folder is added, as it is called then."""
    sync, synced = os.fsync, list[Path]()

    def noted(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").readlink())
        sync(file)

    monkeypatch.setattr(os, "fsync", noted)
    return synced
