# SPDX-License-Identifier: Apache-2.0
"""The memory of a worker that outlives its processes: when it is kept, when it is given up, and that none leaks."""

import os
import signal
from collections.abc import Iterator

import pytest
from open_resources import nothing_left_open

from pontil.launcher.child.exit_cause import ExitCause
from pontil.launcher.child.kept_memory import TRUSTED_AFTER, KeptMemory, may_be_kept
from pontil.launcher.host.devices import Placement
from pontil.launcher.plan.child_plan import plan_ranks

KILLED, CRASHED = ExitCause(0.0, -signal.SIGKILL), ExitCause(0.0, -signal.SIGSEGV)
HUNG = ExitCause(0.0, -signal.SIGKILL, complaint="made no step")


@pytest.fixture
def memory() -> Iterator[KeptMemory]:
    with nothing_left_open():
        made = KeptMemory(2)
        yield made
        made.close()


@pytest.mark.parametrize(
    ("cause", "taken_over", "served", "kept"),
    [
        (KILLED, False, 0.1, True),
        (KILLED, False, None, True),
        (KILLED, True, TRUSTED_AFTER, True),
        (KILLED, True, 0.1, True),
        (KILLED, True, None, False),
        (CRASHED, True, TRUSTED_AFTER, True),
        (CRASHED, True, TRUSTED_AFTER - 0.1, False),
        (HUNG, True, TRUSTED_AFTER - 0.1, False),
        (ExitCause(0.0, -signal.SIGSEGV), False, 0.1, True),
        (ExitCause(0.0, -signal.SIGBUS), False, 1000.0, False),
        (ExitCause(0.0, -signal.SIGKILL, starved=True), False, 1000.0, False),
    ],
)
def test_memory_is_kept_once_and_then_if_it_served(
    cause: ExitCause, taken_over: bool, served: float | None, kept: bool
) -> None:
    assert may_be_kept(cause, taken_over, served) is kept


def test_every_rank_has_files_of_its_own_over_restarts(memory: KeptMemory) -> None:
    first = memory.begin()
    assert len(first) == 2 and len({os.fstat(file).st_ino for files in first for file in files}) == 4
    assert not any(os.get_inheritable(file) for files in first for file in files)
    memory.end(KILLED, 0.1)
    assert memory.begin() == first


def inodes_of_a_loop(memory: KeptMemory, cause: ExitCause, served: float | None) -> list[list[int]]:
    inodes = []
    for _ in range(4):
        inodes.append([os.fstat(files[0]).st_ino for files in memory.begin()])
        memory.end(cause, served)
    return inodes


@pytest.mark.parametrize(("cause", "served"), [(CRASHED, 0.1), (KILLED, None)])
def test_a_loop_of_deaths_does_not_have_the_same_memory_twice(
    memory: KeptMemory, cause: ExitCause, served: float | None
) -> None:
    inodes = inodes_of_a_loop(memory, cause, served)
    assert inodes[0] == inodes[1] != inodes[2] == inodes[3]


def test_a_worker_that_others_kill_again_and_again_finds_its_memory(memory: KeptMemory) -> None:
    """Nothing in the memory sends a signal: what leases promise was gone after the second of two kills in a row."""
    inodes = inodes_of_a_loop(memory, KILLED, 0.1)
    assert inodes == inodes[:1] * 4


def test_a_worker_starts_without_kept_memory_where_the_system_gives_no_files(
    memory: KeptMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, create = list[int](), os.memfd_create

    def fail(name: str, flags: int) -> int:
        if len(made) == 3:
            raise OSError(24, "Too many open files")
        made.append(create(name, flags))
        return made[-1]

    monkeypatch.setattr(os, "memfd_create", fail)
    assert list(memory.begin()) == []


@pytest.mark.parametrize(
    ("devices", "keeps", "expected"),
    [(["cpu"], True, True), (["cpu", "cpu"], True, True), (["cuda:0"], True, False), (["cpu"], False, False)],
)
def test_workers_on_cpus_keep_their_memory(devices: list[str], keeps: bool, expected: bool) -> None:
    places = [Placement(device, (0,)) for device in devices]
    plan = plan_ranks("decode:0", "decode", places, {"keep_kv": keeps}, "ipc:///nowhere")
    assert plan.keeps_memory is expected
