# SPDX-License-Identifier: Apache-2.0
"""Packed weights whose file is cut off, replaced or removed under the processes that map it."""

import fcntl
import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import kernels
import pytest
import torch
from packed_loading import Loading, bits, change, packed_files_of
from workers import Silent

from pontil.gpu_ops.kernels.weights.shelf import MappedShelf, WritingShelf
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.worker.start.loading import read_weights
from pontil.runtime.worker.start.packed_files import files_of, remove


class MappingProcess:
    """Another process, which maps the weights now, without a lease, and reads them when it is told to."""

    def __init__(self, model: Path, cache: Path) -> None:
        mapped, told = os.pipe(), os.pipe()
        self.order = told[1]
        self.pid = os.fork()
        if not self.pid:
            signal.signal(signal.SIGBUS, signal.SIG_DFL)
            loading = Loading(model, cache)
            built = loading.model()
            if loading.shelf.mapped is not None:
                loading.shelf.mapped.hand_back()
            os.write(mapped[1], b"m" if isinstance(loading.shelf, MappedShelf) else b"w")
            os.read(told[0], 1)
            bits(built)
            os._exit(0)
        os.close(mapped[1])
        assert os.read(mapped[0], 1) == b"m"

    def read(self) -> int:
        """Return the exit code of that process after it has read all of them."""
        os.write(self.order, b"r")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_who_died_of_a_file_that_was_cut_off_finds_out_before_using_it_again(model: Path, cache: Path) -> None:
    """And makes another file, which the damaged one's name is given to: who maps that one later is safe."""
    expected = bits(Loading(model, cache).model())
    (file,) = packed_files_of(cache)
    reader, inode = MappingProcess(model, cache), file.stat().st_ino
    file.chmod(0o600)
    os.truncate(file, 4096)
    assert reader.read() == -signal.SIGBUS
    again = Loading(model, cache)
    assert isinstance(again.shelf, WritingShelf) and bits(again.model()) == expected
    assert file.stat().st_ino != inode and MappingProcess(model, cache).read() == 0


def test_a_file_is_replaced_and_removed_under_those_who_map_it(model: Path, cache: Path) -> None:
    Loading(model, cache).model()
    (file,) = packed_files_of(cache)
    readers = [MappingProcess(model, cache)]
    change(replaced := Path(shutil.copy(file, cache / "copy")), 10)
    replaced.rename(file)
    Loading(model, cache).model()
    readers.append(MappingProcess(model, cache))
    (found,) = files_of(cache)
    assert remove(found) and not packed_files_of(cache)
    assert [one.read() for one in readers] == [0, 0]


def test_even_its_owner_opens_a_packed_file_only_to_read(model: Path, cache: Path) -> None:
    Loading(model, cache).model()
    (file,) = packed_files_of(cache)
    assert stat.S_IMODE(file.stat().st_mode) == 0o400
    if os.getuid():
        with pytest.raises(PermissionError):
            file.open("r+b")


def test_who_packed_a_file_has_it_open_to_write_no_more(model: Path, cache: Path) -> None:
    """The system gives a read lease to nobody before: neither its descriptor nor its mapping may be left."""
    built = Loading(model, cache).model()
    with packed_files_of(cache)[0].open("rb") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        assert fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_RDLCK
    assert bits(built)


@pytest.mark.parametrize("hand", [os.utime, lambda path: Path(shutil.copy(path, path.parent / "n")).rename(path)])
def test_a_model_that_changes_while_it_is_read_is_refused_and_not_kept(
    model: Path, cache: Path, hand: Callable[[Path], object]
) -> None:
    checkpoint, config = (
        open_checkpoint(model),
        WorkerConfig("w", "mixed", "cpu", (0,), "m", "m", "c", "p", quantization="none", cache_dir=str(cache)),
    )
    (file,) = checkpoint.files
    for changes in (True, False):
        weights = read_weights(config, checkpoint, torch.device("cpu"), "bfloat16", kernels.opened(), Silent())
        if changes:
            hand(file)
            with pytest.raises(ModelError, match="was changed while it was read"):
                build_model(checkpoint.config, weights)
            assert not packed_files_of(cache)
            assert isinstance(weights.shelf, WritingShelf)
            weights.shelf.lock.close()  # as the end of its process does
    build_model(checkpoint.config, weights)
    assert packed_files_of(cache)
