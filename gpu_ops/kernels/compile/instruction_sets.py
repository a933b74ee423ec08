# SPDX-License-Identifier: Apache-2.0
"""The instruction sets that the kernels can be compiled for, and those that this processor has."""

import ctypes
import platform
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
AVX2 = ("-mavx2", "-mfma")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
# All processors that multiply pairs of bfloat16 numbers also multiply pairs of integers.
AVX512_PAIRS = (*AVX512, "-mavx512bf16", "-mavx512vnni")
PAIRS = frozenset({"avx512_bf16", "avx512_vnni"})
TILES = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
# arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA) of x86-64.
ARCH_PRCTL, REQUEST_STATE, TILE_DATA = 158, 0x1023, 18
AVX512_NEEDS = frozenset({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"})


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """`needs` are names in /proc/cpuinfo, which lists only features whose registers Linux saves on a context switch.
    The compiler is given `flags`, never -march=native, which misjudges virtual machines."""

    name: str
    needs: frozenset[str]
    flags: tuple[str, ...]

    @property
    def title(self) -> str:
        """A name for one kind of code. Sets without needs are other code, which rounds differently, on another kind of
        processor."""
        return self.name if self.needs else f"{self.name}-{platform.machine()}"


INSTRUCTION_SETS = (
    InstructionSet(
        "amx",
        AVX512_NEEDS | TILES | PAIRS,
        (*AVX512_PAIRS, "-mamx-tile", "-mamx-bf16", "-mamx-int8", "-DPONTIL_TILES"),
    ),
    InstructionSet("avx512bf16", AVX512_NEEDS | PAIRS, AVX512_PAIRS),
    InstructionSet("avx512", AVX512_NEEDS, AVX512),
    InstructionSet("avx2", frozenset({"avx2", "fma"}), AVX2),
    # On Arm the vectors of Armv8-A, which every 64-bit processor has.
    InstructionSet("generic", frozenset(), ()),
)
"""The fastest first."""


def usable_sets() -> list[InstructionSet]:
    """The sets that this processor has, the fastest first."""
    features = cpu_features()
    if TILES & features and not may_use_tiles():
        features -= TILES
    return [instruction_set for instruction_set in INSTRUCTION_SETS if instruction_set.needs <= features]


def may_use_tiles() -> bool:
    """Ask Linux for the large registers of the matrix unit, which a process gets on request only. Return whether it
    does."""
    status: int = ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_STATE, TILE_DATA)
    return status == 0


def cpu_features() -> frozenset[str]:
    for line in CPUINFO.read_text().splitlines():
        name, _, values = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(values.split())
    return frozenset()
