# SPDX-License-Identifier: Apache-2.0
"""The one place where kernels are started."""

from collections.abc import Callable
from typing import Any

import triton
from torch import Tensor

Grid = tuple[int, ...]

# Triton's interpreter computes with NumPy on a CPU. Its products and sums of bfloat16 are wrong, so that kernels, which
# take this as a constant, widen to float32 before they compute.
WIDE = bool(triton.knobs.runtime.interpret)
# The compiler's usual numbers of warps, and of stages of a pipeline.
WARPS, STAGES = 4, 2


def start(kernel: Any, grid: Grid, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
    kernel[grid](*arguments, **constants)


# Tests compile instead, or record what would be started.
starter: Callable[[Any, Grid, tuple[Any, ...], dict[str, Any]], None] = start


def launch(kernel: Any, grid: Grid, *arguments: Any, **constants: Any) -> None:
    """Start `kernel` with so many programs. `constants` are compile-time values and options such as num_warps."""
    starter(kernel, grid, arguments, constants)


def ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)


def in_rows(x: Tensor) -> Tensor:
    """The same tensor, with neighbouring numbers along its last axis, as kernels read them."""
    return x if x.stride(-1) == 1 else x.contiguous()


def power_of_2(number: int) -> int:
    """The least power of two that is not less."""
    return int(triton.next_power_of_2(number))


def processor() -> tuple[str, int]:
    """The kind of processor that kernels are compiled for: ("hip", 0), or "cuda" and its compute capability, 90 say.
    Where there is none nothing is compiled, and any answer will do."""
    try:
        target = triton.runtime.driver.active.get_current_target()
    except RuntimeError:
        return "cuda", 80
    return ("hip", 0) if target.backend == "hip" else ("cuda", int(target.arch))
