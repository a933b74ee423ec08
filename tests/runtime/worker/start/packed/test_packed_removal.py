# SPDX-License-Identifier: Apache-2.0
"""Several processes remove packed weights at once, beside others that write them: each takes only what is nobody's."""

import fcntl
import os
from pathlib import Path

import pytest

from pontil.gpu_ops.kernels.weights import packed_file
from pontil.runtime.probe.packed_share import FOLDER
from pontil.runtime.worker.start import packed_files
from pontil.runtime.worker.start.packed_files import COPY, SUFFIX, files_of, mappers, prune, remove, remove_unused


@pytest.fixture
def folder(cache: Path) -> Path:
    made = cache / FOLDER
    made.mkdir(parents=True)
    return made


def damaged(folder: Path, name: str = "a") -> Path:
    path = folder / f"{name}{SUFFIX}"
    path.write_bytes(b"no packed weights")
    now = path.stat().st_mtime
    os.utime(path, (now, now - 2 * packed_files.DAY))
    return path


def test_a_file_that_another_process_removes_meanwhile_is_no_fault(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = damaged(folder)

    def raced(asked: Path) -> list[int]:
        path.unlink(missing_ok=True)
        return mappers(asked)

    monkeypatch.setattr(packed_files, "mappers", raced)
    remove_unused(folder)
    assert mappers(path) == [] and list(prune(folder.parent)) == []


def test_a_copy_that_is_being_made_is_kept(folder: Path) -> None:
    path = damaged(folder)
    copy = folder / f"{path.stem}{COPY}"
    copy.write_bytes(b"some of it")
    with path.open("rb") as copied:
        fcntl.flock(copied, fcntl.LOCK_EX)
        assert [file.path for file in prune(folder.parent)] == [path]
        assert copy.exists()
    assert [file.path for file in prune(folder.parent)] == [copy]


def test_the_file_of_who_packs_anew_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two remove a file, and a third one packs it again between them: its lock is another one."""
    path = damaged(folder)
    (file,) = files_of(folder.parent)
    locked = fcntl.flock

    def late(lock: object, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", locked)
        assert remove(file)
        path.write_bytes(b"anew")
        path.with_suffix(packed_files.LOCK).touch()
        locked(lock, operation)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", late)
    assert not remove(file)
    assert path.read_bytes() == b"anew" and path.with_suffix(packed_files.LOCK).exists()


def test_a_file_of_another_user_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = damaged(folder, "theirs"), damaged(folder, "ours")
    reading = packed_file.read_index

    def read_index(path: Path) -> packed_file.PackedIndex:
        if path == theirs:
            raise PermissionError(13, "not yours")
        return reading(path)

    monkeypatch.setattr(packed_files, "read_index", read_index)
    remove_unused(folder)
    assert theirs.exists() and not ours.exists()
