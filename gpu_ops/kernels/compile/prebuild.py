# SPDX-License-Identifier: Apache-2.0
"""Compile kernels in advance, for every processor of this architecture: `python -m
pontil.gpu_ops.kernels.compile.prebuild`.

An image of a container is made by one machine and run by others, without a compiler and with nothing writable. A
library is tried by the process that loads it, since the machine that compiles it may lack its instructions.
"""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from pontil.gpu_ops.kernels.compile.build import FLAGS, PREBUILT, compile_to, find_compiler, prebuilt
from pontil.gpu_ops.kernels.compile.instruction_sets import INSTRUCTION_SETS, InstructionSet

X86 = ("x86_64", "AMD64")


def sets_of(machine: str) -> list[InstructionSet]:
    return [instruction_set for instruction_set in INSTRUCTION_SETS if machine in X86 or not instruction_set.needs]


def prebuild() -> Iterator[Path]:
    """Compile and yield each library that is not there yet. Raises KernelError for what the compiler refuses."""
    compiler = find_compiler()
    PREBUILT.mkdir(exist_ok=True)
    for instruction_set in sets_of(platform.machine()):
        library = prebuilt(instruction_set)
        if not library.is_file():
            compile_to(library, [compiler, *FLAGS, *instruction_set.flags], runs_here=False)
        yield library


if __name__ == "__main__":
    for path in prebuild():
        sys.stdout.write(f"{path}\n")
