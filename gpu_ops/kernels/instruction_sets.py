# SPDX-License-Identifier: Apache-2.0
"""What the kernels can be compiled for, and what this processor has."""

from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
AVX2 = ("-mavx2", "-mfma")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """`needs` are names in /proc/cpuinfo, where the kernel lists only what it saves on a context switch. The compiler
    is given `flags`, never -march=native, which takes virtual machines for what they are not."""

    name: str
    needs: frozenset[str]
    flags: tuple[str, ...]


INSTRUCTION_SETS = (
    InstructionSet(
        "avx512bf16",
        frozenset({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"}),
        (*AVX512, "-mavx512bf16"),
    ),
    InstructionSet("avx512", frozenset({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}), AVX512),
    InstructionSet("avx2", frozenset({"avx2", "fma"}), AVX2),
    InstructionSet("generic", frozenset(), ()),
)
"""The fastest first."""


def usable_sets() -> list[InstructionSet]:
    """Those that this processor has, the fastest first."""
    features = cpu_features()
    return [one for one in INSTRUCTION_SETS if one.needs <= features]


def cpu_features() -> frozenset[str]:
    for line in CPUINFO.read_text().splitlines():
        name, _, values = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(values.split())
    return frozenset()
