# SPDX-License-Identifier: Apache-2.0
"""Packed weights whose file is cut off or written to under the processes that map it, and have a lease on it."""

import errno
import logging
import os
import select
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from guarded_process import IN_ORDER, GuardedProcess, digest, digest_of
from packed_loading import LOCKS, TIMEOUT, Loading, bits, change, packed_files_of, wait_for_leases

from pontil.gpu_ops.kernels.weights.file_memory import MappedFile, path_of
from pontil.gpu_ops.kernels.weights.places import PARTIAL
from pontil.gpu_ops.kernels.weights.shelf import MappedShelf, WritingShelf, verify
from pontil.runtime.probe.host_memory import FreeMemory
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.worker.start import packed_copy, packed_weights
from pontil.runtime.worker.start.packed_copy import break_time
from pontil.runtime.worker.start.packed_files import mappers
from pontil.runtime.worker.start.packed_guard import LOOK, PackedGuard

Faults = Callable[[pytest.MonkeyPatch], None]
Start = Callable[..., list[GuardedProcess]]


@pytest.mark.parametrize("size", [0, 4096])
def test_a_file_that_is_cut_off_takes_neither_who_packed_it_nor_who_maps_it(
    model: Path, cache: Path, start: Start, size: int
) -> None:
    """One of them copies it, and all map the copy, which has the name: the same once more."""
    expected, processes = digest(model, None), start(3)
    assert [one.kind for one in processes] == [b"w", b"m", b"m"]
    (path,) = packed_files_of(cache)
    before = path.stat()
    for number in range(2):
        with path.open("rb") as held:
            os.truncate(path, size)
            assert os.fstat(held.fileno()).st_size == size and not path.samefile(path_of(held))
        assert [one.read() for one in processes] == [expected] * 3, number
        assert mappers(path) == sorted(one.pid for one in processes)
        verify(path)
        wait_for_leases(path, len(processes))
    after = path.stat()
    assert (after.st_size, after.st_mode) == (before.st_size, before.st_mode)
    assert isinstance(Loading(model, cache).shelf, MappedShelf)
    assert [one.end() for one in processes] == [0, 0, 0]
    assert not list(path.parent.glob(f"*{PARTIAL}"))


def test_who_still_loads_when_the_file_is_cut_off_moves_once_it_guards_it(
    model: Path, cache: Path, start: Start
) -> None:
    """The lease is taken before the sums are compared, and the system waits for it."""
    expected, processes = digest(model, None), start(2, guarded=False)
    (path,) = packed_files_of(cache)
    cutting = threading.Thread(target=os.truncate, args=(path, 0))
    cutting.start()
    wait_for_leases(path, 2, "BREAKING")
    for one in processes:
        one.guard()
    cutting.join(TIMEOUT)
    assert not cutting.is_alive() and [one.read() for one in processes] == [expected] * 2
    assert [one.end() for one in processes] == [0, 0]


@pytest.mark.parametrize("here", [True, False], ids=["", "in-another-container"])
def test_who_starts_while_somebody_waits_to_write_has_the_copy(
    model: Path, cache: Path, start: Start, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    """The system's list of leases has those of this PID namespace only."""
    if not here:
        monkeypatch.setattr(packed_weights, "LOCKS", cache / "none")
    expected, (holder,) = digest(model, None), start(1, guarded=False)
    (path,) = packed_files_of(cache)
    cutting = threading.Thread(target=os.truncate, args=(path, 0))
    cutting.start()
    wait_for_leases(path, 1, "BREAKING")
    real = packed_weights.is_breaking
    seen: list[Path] = []

    def is_breaking(path: Path) -> bool:
        """The holder moves once this process has seen it."""
        if real(path) and not seen:
            seen.append(path)
            holder.guard()
            return True
        return real(path)

    monkeypatch.setattr(packed_weights, "is_breaking", is_breaking)
    loading = Loading(model, cache)
    mapped = loading.shelf.mapped
    assert seen and mapped is not None and mapped.leased and not mapped.is_replaced
    cutting.join(TIMEOUT)
    assert not cutting.is_alive() and digest_of(bits(loading.model())) == holder.read() == expected
    mapped.hand_back()
    assert holder.end() == 0


def test_two_hands_at_once_change_one_file_without_a_name(model: Path, cache: Path, start: Start) -> None:
    expected, processes = digest(model, None), start(2)
    (path,) = packed_files_of(cache)
    with path.open("rb") as held:
        path.chmod(0o600)
        cutting = threading.Thread(target=os.truncate, args=(path, 0))
        cutting.start()
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
        cutting.join(TIMEOUT)
        assert not cutting.is_alive() and os.fstat(held.fileno()).st_size == 0
    assert [one.read() for one in processes] == [expected] * 2
    verify(path)
    assert [one.end() for one in processes] == [0, 0]


@pytest.fixture
def before_each_copy(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A pipe that says who copies: whoever does first stops with a part of it written."""
    (telling, told), (first, given), real = os.pipe(), os.pipe(), os.sendfile
    os.write(given, b"f")
    os.set_blocking(first, False)

    def copy(written: int, source: int, at: int, size: int) -> int:
        try:
            os.read(first, 1)
        except BlockingIOError:
            return real(written, source, at, size)
        assert real(written, source, at, 4096) == 4096
        os.write(told, str(os.getpid()).encode())
        signal.pause()
        return 0

    monkeypatch.setattr(os, "sendfile", copy)
    yield telling
    for one in (telling, told, first, given):
        os.close(one)


def test_who_is_killed_in_the_middle_of_a_copy_leaves_it_to_the_next(
    model: Path, cache: Path, start: Start, before_each_copy: int
) -> None:
    expected, processes = digest(model, None), start(3)
    (path,) = packed_files_of(cache)
    cutting = threading.Thread(target=os.truncate, args=(path, 0))
    cutting.start()
    assert select.select([before_each_copy], [], [], TIMEOUT)[0]
    killed = int(os.read(before_each_copy, 16))
    assert [one.stat().st_size for one in path.parent.glob(f"*{PARTIAL}")] == [4096]
    os.kill(killed, signal.SIGKILL)
    cutting.join(TIMEOUT)
    left = [one for one in processes if one.pid != killed]
    assert not cutting.is_alive() and [one.read() for one in left] == [expected] * 2
    assert mappers(path) == sorted(one.pid for one in left) and not list(path.parent.glob(f"*{PARTIAL}"))
    assert sorted(one.end() for one in processes) == [-signal.SIGKILL, 0, 0]


def full_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packed_copy, "lack_of_room", lambda folder, size: "the disk is full")


def full_in_the_middle(patch: pytest.MonkeyPatch) -> None:
    real = os.sendfile

    def copy(written: int, source: int, at: int, size: int) -> int:
        if at and "memfd" not in os.readlink(f"/proc/self/fd/{written}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(written, source, at, size)

    patch.setattr(packed_copy, "COPIED_BYTES", 65536)
    patch.setattr(os, "sendfile", copy)


def too_slow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packed_copy, "COPYING", 0.0)


@pytest.mark.parametrize("fault", [full_before, full_in_the_middle, too_slow])
def test_where_a_disk_cannot_have_the_copy_each_process_has_one_in_memory(
    model: Path, cache: Path, start: Start, monkeypatch: pytest.MonkeyPatch, fault: Faults
) -> None:
    fault(monkeypatch)
    expected, processes = digest(model, None), start(2)
    (path,) = packed_files_of(cache)
    os.truncate(path, 0)
    assert path.stat().st_size == 0 and [one.read() for one in processes] == [expected] * 2
    assert not mappers(path) and not list(path.parent.glob(f"*{PARTIAL}"))
    assert [one.end() for one in processes] == [0, 0]


def test_where_memory_cannot_have_it_either_each_process_ends_in_order(
    model: Path, cache: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still reads its weights: the file is cut off when none is left."""
    full_before(monkeypatch)
    monkeypatch.setattr(packed_copy, "host_room", lambda: FreeMemory(1000))
    processes = start(2)
    os.truncate(packed_files_of(cache)[0], 0)
    assert [one.end() for one in processes] == [IN_ORDER, IN_ORDER]


def test_a_file_of_that_name_with_other_bytes_is_not_taken_for_a_copy(model: Path, cache: Path, start: Start) -> None:
    """Its sums are compared before it is mapped."""
    expected, (process,) = digest(model, None), start(1)
    (path,) = packed_files_of(cache)
    with path.open("rb") as mapped:
        change(replaced := Path(shutil.copy(path, cache / "copy")), 10)
        replaced.rename(path)
        os.truncate(f"/proc/self/fd/{mapped.fileno()}", 0)
    assert process.read() == expected and process.end() == 0
    verify(path)


def test_a_lease_is_taken_once_nobody_has_the_file_open_to_write(
    model: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some systems of files answer as if somebody had, always: nothing is copied for that, and one line says so."""
    caplog.set_level(logging.INFO, logger="pontil.worker")
    loading = Loading(model, cache)
    built, guard = loading.model(), PackedGuard(loading.shelf.mapped)
    (mapped,) = guard.files
    guard.hand_back()
    mapped.path.chmod(0o600)
    with mapped.path.open("r+b"):
        assert [guard.turn(), guard.turn()] == [LOOK, LOOK] and not mapped.leased and not mapped.is_replaced
    assert [line for line in caplog.messages if "cuts off" in line] == [
        f"who cuts off {mapped.path} ends this worker: the system gives no lease on it: "
        "[Errno 11] Resource temporarily unavailable"
    ]
    assert guard.turn() == LOOK and mapped.leased and bits(built)
    guard.hand_back()


def test_who_has_no_lease_when_others_move_to_a_copy_moves_too(
    model: Path, cache: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They had theirs before somebody waited for it, and the system does not tell of that."""
    monkeypatch.setattr(packed_weights, "is_breaking", lambda path: False)
    expected, (holder,) = digest(model, None), start(1, guarded=False)
    (path,) = packed_files_of(cache)
    cutting = threading.Thread(target=os.truncate, args=(path, 0))
    cutting.start()
    wait_for_leases(path, 1, "BREAKING")
    late = Loading(model, cache)
    built, guard = late.model(), PackedGuard(late.shelf.mapped)
    (mapped,) = guard.files
    assert not mapped.leased
    shutil.copy(path, cache / "copy")
    (cache / "copy").rename(path)
    assert guard.turn() == 0.0 and guard.turn() == LOOK and mapped.leased
    holder.guard()
    cutting.join(TIMEOUT)
    assert digest_of(bits(built)) == holder.read() == expected
    guard.hand_back()
    assert holder.end() == 0


def test_a_child_process_that_has_the_file_open_too_holds_nobody_up(model: Path, cache: Path) -> None:
    """It has lease and lock in common with its parent, who closes the file alone."""
    loading = Loading(model, cache)
    built, guard = loading.model(), PackedGuard(loading.shelf.mapped)
    (path,) = packed_files_of(cache)
    inode, child = f":{path.stat().st_ino} ", os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    cutting = threading.Thread(target=os.truncate, args=(path, 0))
    cutting.start()
    try:
        wait_for_leases(path, 1, "BREAKING")
        assert guard.turn() == 0.0 and not [line for line in LOCKS.open() if inode in line]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        cutting.join(TIMEOUT)
    assert digest_of(bits(built)) == digest(model, None)


def test_who_starts_waits_for_a_writer_once_and_only_where_there_are_leases(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some systems of files answer as if somebody had each file open to write."""
    expected, waited = digest(model, cache), list[float]()

    def waits(seconds: float, is_over: Callable[[], bool]) -> bool:
        waited.append(seconds)
        return is_over()

    monkeypatch.setattr(packed_weights, "wait_within", waits)
    (path,) = packed_files_of(cache)
    path.chmod(0o600)
    for gives_leases in (True, False):
        monkeypatch.setattr(packed_weights, "gives_leases", lambda folder, answer=gives_leases: answer)
        with path.open("r+b"):
            assert packed_weights.is_breaking(path) == gives_leases
            assert digest(model, cache) == expected
        assert len(waited) == 1 and 0 < waited.pop() <= break_time()
    monkeypatch.undo()
    assert packed_weights.gives_leases(path.parent) and not packed_weights.gives_leases(Path("/proc"))
    assert sorted(one.suffix for one in path.parent.iterdir()) == [".digest", ".lock", ".packed"]


def test_a_file_that_can_have_no_lease_is_used_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Path("/dev/null").open("rb") as file:
        guard = PackedGuard(MappedFile(tmp_path, file, []), None)
        assert guard.turn() is None and not guard.files
    (line,) = caplog.messages
    assert line == (
        f"who cuts off {tmp_path} ends this worker: the system gives no lease on it: [Errno 22] Invalid argument"
    )


def test_a_guard_that_is_closed_hands_its_leases_back(model: Path, cache: Path) -> None:
    loading, failures = Loading(model, cache), ThreadFailures()
    loading.model()
    (path,) = packed_files_of(cache)
    with ExitStack() as opened:
        PackedGuard(loading.shelf.mapped).begin(opened, failures)
        wait_for_leases(path, 1)
    wait_for_leases(path, 0)
    assert not failures.counts()
    assert not [one for one in threading.enumerate() if one.name == "packed-weights"]


def test_memory_of_a_launch_needs_no_lease(model: Path, tmp_path: Path) -> None:
    memory = os.memfd_create("weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    (tmp_path / "file").write_text("not a folder")
    for kind in (WritingShelf, MappedShelf):
        loading = Loading(model, tmp_path / "file", memory=memory)
        loading.model()
        assert isinstance(loading.shelf, kind) and loading.shelf.mapped is None
    os.close(memory)
