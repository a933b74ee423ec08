# SPDX-License-Identifier: Apache-2.0
"""Packed weights in memory that a launcher holds, where they cannot be a file."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from packed_loading import Loading, bits, packed_files_of

from pontil.gpu_ops.kernels.weights import arena, places
from pontil.gpu_ops.kernels.weights.shelf import MappedShelf, PrivateShelf, WritingShelf
from pontil.runtime.worker.start import packed_files


@pytest.fixture
def no_folder(tmp_path: Path) -> Path:
    """A cache directory in which nothing can be written."""
    (tmp_path / "file").write_text("not a folder")
    return tmp_path / "file"


@pytest.fixture
def memory() -> Iterator[int]:
    """The file that a launcher holds."""
    file = os.memfd_create("weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    yield file
    os.close(file)


def test_where_no_file_can_be_written_memory_of_the_launch_is_shared(
    model: Path, no_folder: Path, memory: int, caplog: pytest.LogCaptureFixture
) -> None:
    expected, built = bits(Loading(model, None).model()), []
    for kind in (WritingShelf, MappedShelf, MappedShelf):
        loading = Loading(model, no_folder, memory=memory)
        built.append(loading.model())
        assert isinstance(loading.shelf, kind) and bits(built[-1]) == expected
        # The system does not count it as free.
        assert loading.shelf.reclaimable == 0
    assert len([line for line in caplog.messages if "in memory that the workers of this launch share" in line]) == 3
    for change in (lambda: os.truncate(memory, 0), lambda: os.pwrite(memory, b"x", 0)):
        with pytest.raises(PermissionError):
            change()
    assert all(bits(one) == expected for one in built)


def test_a_full_disk_has_the_launch_share_memory(
    model: Path, cache: Path, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_files, "lack_of_room", lambda folder, size, spare=0: "full")
    first = Loading(model, cache, memory=memory)
    first.model()
    assert isinstance(first.shelf, WritingShelf) and not packed_files_of(cache)
    assert isinstance(Loading(model, cache, memory=memory).shelf, MappedShelf)


def test_memory_is_not_used_where_a_file_can_be(model: Path, cache: Path, memory: int) -> None:
    Loading(model, cache, memory=memory).model()
    assert packed_files_of(cache) and os.fstat(memory).st_size == 0


def test_who_dies_while_it_packs_into_memory_leaves_it_to_the_next(model: Path, no_folder: Path, memory: int) -> None:
    pid = os.fork()
    if not pid:
        dying = Loading(model, no_folder, memory=memory)
        dying.weights.take(
            "model.embed_tokens.weight", dying.checkpoint.config.vocab_size, dying.checkpoint.config.hidden_size
        )
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert os.fstat(memory).st_size > 0
    again = Loading(model, no_folder, memory=memory)
    assert isinstance(again.shelf, WritingShelf)
    again.model()
    assert isinstance(Loading(model, no_folder, memory=memory).shelf, MappedShelf)


def test_who_comes_while_another_packs_into_memory_waits_for_it(model: Path, no_folder: Path, memory: int) -> None:
    first, second = Loading(model, no_folder, memory=memory), list[Loading]()
    waiting = threading.Thread(target=lambda: second.append(Loading(model, no_folder, memory=memory)))
    waiting.start()
    first.model()
    waiting.join(timeout=60)
    assert isinstance(first.shelf, WritingShelf) and isinstance(second[0].shelf, MappedShelf)


def test_weights_of_a_file_that_was_changed_are_not_taken_from_memory(
    model: Path, no_folder: Path, memory: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The memory is sealed, and others compute with what is in it."""
    Loading(model, no_folder, memory=memory).model()
    (file,) = model.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    changed = Loading(model, no_folder, memory=memory)
    assert isinstance(changed.shelf, PrivateShelf) and "files that were changed since" in caplog.messages[-1]
    assert bits(changed.model()) == bits(Loading(model, None).model())


@pytest.mark.parametrize("regions", [0, 1])
def test_memory_that_runs_out_stays_with_who_began_and_others_have_their_own(
    model: Path, no_folder: Path, memory: int, regions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first still computes with what it wrote: it must not be cut off."""
    monkeypatch.setattr(arena, "CHUNK", 4096)
    expected, real, room = bits(Loading(model, None).model()), os.posix_fallocate, [regions]

    def allocate(file: int, start: int, size: int) -> None:
        if not room[0]:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        room[0] -= 1
        real(file, start, size)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    first = Loading(model, no_folder, memory=memory).model()
    second = Loading(model, no_folder, memory=memory)
    assert isinstance(second.shelf, PrivateShelf) and bits(second.model()) == bits(first) == expected


def test_memory_is_shared_where_the_system_knows_no_seal_of_later_writes(
    model: Path, no_folder: Path, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 5.1: it can be written, but not be cut off."""
    monkeypatch.setattr(places, "F_SEAL_FUTURE_WRITE", 1 << 20)
    Loading(model, no_folder, memory=memory).model()
    assert isinstance(Loading(model, no_folder, memory=memory).shelf, MappedShelf)
    with pytest.raises(PermissionError):
        os.truncate(memory, 0)
