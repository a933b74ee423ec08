# SPDX-License-Identifier: Apache-2.0
"""Kernels are compiled once for all processes; without a compiler torch computes, with one warning."""

import inspect
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import kernels
import pytest
from synced_names import note_syncs

from pontil.gpu_ops.kernels import kernel_set
from pontil.gpu_ops.kernels.compile import build as building
from pontil.gpu_ops.kernels.compile import instruction_sets
from pontil.gpu_ops.kernels.compile import prebuild as prebuilding
from pontil.gpu_ops.kernels.compile.build import FLAGS, KernelError, build
from pontil.gpu_ops.kernels.compile.instruction_sets import INSTRUCTION_SETS, InstructionSet, usable_sets
from pontil.gpu_ops.kernels.kernel_set import CHOICES, open_kernels
from pontil.runtime.config.worker_config import KERNELS

QUICK = InstructionSet("generic", frozenset(), ("-O0",))
# Quick to compile: these tests are not about the code. The second ends a process that lacks the matrix unit.
OPENS = 'extern "C" void *pontil_open(int) { static int context; return &context; }'
USES_TILES = '#include <immintrin.h>\nextern "C" void *pontil_open(int) { _tile_zero(0); return nullptr; }'


@pytest.fixture(autouse=True)
def compiler() -> None:
    try:
        building.find_compiler()
    except KernelError as error:
        pytest.skip(str(error))


@pytest.fixture
def little_source(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of the kernels' sources."""
    folder = tmp_path_factory.mktemp("csrc")
    (folder / building.MAIN).write_text(OPENS)
    monkeypatch.setattr(building, "SOURCES", folder)
    monkeypatch.setattr(building, "source_digest", inspect.unwrap(building.source_digest))
    return folder / building.MAIN


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for any processor are copied, not compiled again."""
    kernels.opened("generic").close()
    path = build(INSTRUCTION_SETS[-1], kernels.CACHE / "kernels", lambda text: None)
    monkeypatch.setattr(building, "compile_to", lambda library, command: shutil.copy(path, library))


def test_what_has_its_name_is_on_the_disk(tmp_path: Path, little_source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = note_syncs(monkeypatch)
    build(QUICK, tmp_path, lambda text: None)
    assert [path.name for path in synced] == [f"{building.PARTIAL}{os.getpid()}"]


def test_of_several_that_ask_at_once_one_compiles(tmp_path: Path, little_source: Path) -> None:
    told: list[str] = []
    found: list[Path] = []

    def ask() -> None:
        found.append(build(QUICK, tmp_path, told.append))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    assert len(found) == 4 and len(set(found)) == 1
    assert told == ["compiling kernels for generic, once"]
    assert {path.name for path in tmp_path.iterdir()} == {"lock", found[0].name}


def test_other_sources_or_flags_are_another_library(
    tmp_path: Path, little_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(QUICK, tmp_path, lambda text: None)
    monkeypatch.setattr(building, "compile_to", lambda library, command: library.write_text("whole"))
    assert build(QUICK, tmp_path, lambda text: None) == first
    monkeypatch.setattr(building, "FLAGS", (*FLAGS, "-DOTHER"))
    second = build(QUICK, tmp_path, lambda text: None)
    monkeypatch.setattr(building, "source_digest", lambda: "other")
    assert len({first, second, build(QUICK, tmp_path, lambda text: None)}) == 3


CODE = 'int a = 1; /* one */ const char *b = "// no \\" comment /*"; // two\nchar c = \'"\'; int d = 4 / 2;\n'


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (CODE.replace("one", "another\ntext, over lines"), True),
        (CODE.replace("// two", ""), True),
        (f"// The first line\n\n    /* and more */\n{CODE}\n", True),
        (CODE.replace("// no", "// yes"), False),
        (CODE.replace("comment /*", "comment"), False),
        (CODE.replace("4 / 2", "4 // 2"), False),
        (CODE.replace("int a", "// int a"), False),
        (CODE.replace("/* one */", "/* one */ int e;"), False),
    ],
)
def test_comments_are_no_other_sources(little_source: Path, text: str, same: bool) -> None:
    little_source.write_text(CODE)
    before = building.source_digest()
    little_source.write_text(text)
    assert (building.source_digest() == before) is same


def test_what_the_compiler_refuses_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "partial-1").write_text("of a process that was killed")
    with pytest.raises(KernelError, match="refused") as caught:
        build(InstructionSet("x", frozenset(), ("-mno-such-thing",)), tmp_path, lambda text: None)
    assert caught.value.is_about_one_set and [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_compiler_ends_with_the_process_that_asked(tmp_path: Path) -> None:
    """Even if the parent is killed, neither the compiler nor its child processes are left."""
    slow = tmp_path / "slow-compiler"
    slow.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {tmp_path}/pids\nsleep 1000\n")
    slow.chmod(0o755)
    asking = os.fork()
    if asking == 0:
        building.compile_to(tmp_path / "library", [str(slow)])
        os._exit(0)
    pids = tmp_path / "pids"
    eventually(lambda: pids.exists() and pids.read_text().strip() != "")
    started = Path("/proc") / pids.read_text().strip()
    assert started.exists()
    os.kill(asking, signal.SIGKILL)
    os.waitpid(asking, 0)
    eventually(lambda: has_ended(started))


def has_ended(process: Path) -> bool:
    try:
        return ") Z " in (process / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def eventually(condition: Callable[[], bool]) -> None:
    pause, deadline = threading.Event(), time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.01)


def test_instructions_that_end_a_process_are_found_out_in_another_one(tmp_path: Path, little_source: Path) -> None:
    amx = INSTRUCTION_SETS[0]
    if amx in usable_sets():
        pytest.skip("this processor has the matrix unit")
    little_source.write_text(USES_TILES)
    with pytest.raises(KernelError, match="does not let|refused") as caught:
        build(amx, tmp_path, lambda text: None)
    assert caught.value.is_about_one_set and [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_the_matrix_unit_needs_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_sets, "cpu_features", lambda: INSTRUCTION_SETS[0].needs)
    for granted in (True, False):
        monkeypatch.setattr(instruction_sets, "may_use_tiles", lambda granted=granted: granted)
        assert (usable_sets()[0].name == "amx") is granted


def test_libraries_that_were_compiled_in_advance_need_no_compiler(
    tmp_path: Path, little_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of other sources are not used, and one that ends its process is found out before it is loaded."""
    monkeypatch.setattr(building, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(prebuilding, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(prebuilding, "INSTRUCTION_SETS", (QUICK,))
    (library,) = prebuilding.prebuild()
    monkeypatch.setattr(building, "COMPILERS", ("no-such-compiler",))
    assert build(QUICK, tmp_path / "cache", lambda text: None) == library and not (tmp_path / "cache").exists()
    with pytest.raises(KernelError, match="no C\\+\\+ compiler"):
        build(InstructionSet("generic", frozenset(), ("-O1",)), tmp_path / "cache", lambda text: None)
    library.write_text("half of it")
    with pytest.raises(KernelError, match="does not let"):
        build(QUICK, tmp_path / "cache", lambda text: None)
    little_source.write_text(f"{OPENS} int32_t another() {{ return 0; }}")
    with pytest.raises(KernelError, match="no C\\+\\+ compiler"):
        build(QUICK, tmp_path / "cache", lambda text: None)


def test_kernels_are_compiled_in_advance_for_all_processors_of_an_architecture() -> None:
    assert [one.name for one in prebuilding.sets_of("x86_64")] == [one.name for one in INSTRUCTION_SETS]
    assert [one.name for one in prebuilding.sets_of("aarch64")] == ["generic"]


def test_without_a_compiler_torch_computes_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(building, "COMPILERS", ("no-such-compiler",))
    with caplog.at_level(logging.WARNING):
        assert open_kernels("auto", 1, tmp_path) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"computing without the {usable_sets()[0].name} kernels: no C++ compiler is installed (no-such-compiler)"
    ]
    with pytest.raises(KernelError, match="no C"):
        open_kernels("generic", 1, tmp_path)


@pytest.mark.usefixtures("compiled")
def test_kernels_that_are_wrong_here_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sets = (InstructionSet("first", frozenset(), ("-O0",)), InstructionSet("second", frozenset(), ("-O0", "-g0")))
    monkeypatch.setattr(kernel_set, "usable_sets", lambda: list(sets))
    monkeypatch.setattr(kernel_set, "fault", lambda library: "off" if library.name.startswith("first") else None)
    found = open_kernels("auto", 1, tmp_path)
    assert found is not None and found.name.startswith("second-")
    found.close()
    assert "the first kernels: their results are wrong here: off" in caplog.text


@pytest.mark.usefixtures("compiled")
def test_nothing_is_kept_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_set, "usable_sets", lambda: [QUICK])
    found = open_kernels("generic", 1, None)
    assert found is not None and not Path(found.library._name).exists()
    found.close()


def test_sets_for_any_processor_are_told_apart_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are other code there, which rounds differently."""
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert [one.title for one in INSTRUCTION_SETS[-2:]] == ["avx2", "generic-aarch64"]


def test_names() -> None:
    assert open_kernels("torch", 1, None) is None
    assert CHOICES == KERNELS, "the launcher repeats them, because it imports nothing heavy"
    assert usable_sets()[-1] == INSTRUCTION_SETS[-1], "generic runs everywhere"
    with pytest.raises(KernelError, match="does not have"):
        open_kernels("mmx", 1, None)
