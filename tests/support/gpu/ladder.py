# SPDX-License-Identifier: Apache-2.0
"""The cases of the kernels for GPUs, and the rungs on which each is tried: by Triton's interpreter beside torch's
counterpart, compiled for real processors, and on a device where there is one."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Results = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a compiled kernel: registers of a thread, bytes of shared memory, spilled bytes, scalars that AMD's
    processors have to keep in lanes of vector registers, and the instructions that its assembly must contain, by the
    family of processors ("nvidia", "amd") and by the processor ("sm_90a")."""

    registers: int = 255
    shared: int = 160 << 10
    spills: int = 0
    scalar_spills: int = 0
    must_have: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One call of a public function of `gpu_ops/triton`. `call(device)` makes its inputs there, from seeds, and
    returns results; `expected()` computes them with torch on the CPU, or `whole(device)` by other calls of the kernels
    there. `tolerance` is relative to the largest expected
    number; 0 demands equal bits. `sizes` may be those of a real model where `interpreted` is false: such a case is
    only compiled, by calling with empty memory."""

    name: str
    call: Callable[[torch.device], Results]
    expected: Callable[[], Results] | None = None
    tolerance: float = 1e-5
    budget: Budget = field(default_factory=Budget)
    interpreted: bool = True
    compiled: bool = True
    whole: Callable[[torch.device], Results] | None = None


def largest_error(results: Results, expected: Results) -> float:
    """The largest difference, relative to the largest expected number; infinite where shapes, types or NaNs differ."""
    assert len(results) == len(expected)
    worst = 0.0
    for got, want in zip(results, expected, strict=True):
        if got.shape != want.shape or got.dtype != want.dtype:
            return float("inf")
        if torch.equal(got.cpu(), want.cpu()):
            continue
        mine, theirs = got.cpu().double(), want.cpu().double()
        difference = (mine - theirs).abs()
        same = (mine == theirs) | (mine.isnan() & theirs.isnan())
        difference = difference.masked_fill(same, 0.0)
        scale = theirs[theirs.isfinite()].abs().max().item() if theirs.isfinite().any() else 1.0
        error = (difference / max(scale, 1e-30)).max().item()
        worst = max(worst, float("inf") if error != error else error)
    return worst
