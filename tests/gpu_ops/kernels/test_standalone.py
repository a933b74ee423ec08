# SPDX-License-Identifier: Apache-2.0
"""The kernels in a C++ program that checks them by itself (standalone.cpp): on this processor and, emulated, on Arm."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pontil.gpu_ops.kernels.compile import build as building
from pontil.gpu_ops.kernels.compile.build import KernelError, find_compiler
from pontil.gpu_ops.kernels.compile.instruction_sets import INSTRUCTION_SETS, InstructionSet, usable_sets

PROGRAM = Path(__file__).with_name("standalone.cpp")
FLAGS = (*(one for one in building.FLAGS if one not in ("-fPIC", "-shared")), f"-I{building.SOURCES}")
ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
HOW = "Debian: apt install g++-aarch64-linux-gnu qemu-user"
TIMEOUT = 300.0


def run(*command: str | Path) -> str:
    """Run a command that is expected to succeed; return its output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def found(*names: str) -> list[str]:
    """Return the paths of these programs; skips the test where one is missing."""
    paths = [shutil.which(name) for name in names]
    if missing := [name for name, path in zip(names, paths, strict=True) if path is None]:
        pytest.skip(f"{' and '.join(missing)} not here ({HOW})")
    return [path for path in paths if path is not None]


def check_here(one: InstructionSet, folder: Path) -> None:
    try:
        compiler = find_compiler()
    except KernelError as error:
        pytest.skip(str(error))
    program = folder / "standalone"
    run(compiler, *FLAGS, "-O1", *one.flags, PROGRAM, "-o", program)
    assert run(program).startswith("0 of ")


# C16: a row's bits are the same for every number of rows and threads. By default they are compared from Python, by the
# other tests here; a program without Python takes as long to compile as all of these to run.
@pytest.mark.long
def test_on_this_processor(tmp_path: Path) -> None:
    check_here(usable_sets()[0], tmp_path)


@pytest.mark.long
def test_on_any_processor(tmp_path: Path) -> None:
    check_here(INSTRUCTION_SETS[-1], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("architecture", ["armv8-a", "armv8.2-a+bf16+i8mm"])
def test_on_arm(tmp_path: Path, architecture: str) -> None:
    """The program has the optimizations of what workers load."""
    compiler, emulator = found(ARM_COMPILER, ARM_EMULATOR)
    program = tmp_path / "standalone"
    flags = (*FLAGS, *building.ARM_FLAGS, "-Wall", "-Werror")
    run(compiler, *flags, f"-march={architecture}", "-static", PROGRAM, "-o", program)
    assert run(emulator, "-cpu", "max", program).startswith("0 of ")


@pytest.mark.long
@pytest.mark.parametrize("one", usable_sets(), ids=lambda one: one.name)
def test_clang_takes_them(one: InstructionSet) -> None:
    if (compiler := shutil.which("clang++")) is None:
        pytest.skip("clang++ is not here")
    run(compiler, *FLAGS, *one.flags, "-fsyntax-only", PROGRAM)
