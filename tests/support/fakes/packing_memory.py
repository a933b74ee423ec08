# SPDX-License-Identifier: Apache-2.0
"""Print the bytes that packing random weights of each ggml type takes at most, the weights themselves among them; or
of weights in bfloat16 that become bytes first, with int8 for a type.

    python packing_memory.py TYPE ...

In a process of its own: memory that other work has left free would be used again, and be counted or not.
"""

import ctypes
import gc
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights

M_MMAP_THRESHOLD = -3  # <malloc.h>
OUTPUTS, INPUTS = 8192, 8192


def memory_of(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def levels(kind: int, outputs: int, inputs: int) -> "QuantizedWeights":
    """Random weights of a ggml type, taken apart."""
    from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights
    from pontil.runtime.loaders.gguf.ggml_levels import LEVELS, STEPS, places_in
    from pontil.runtime.loaders.gguf.ggml_types import GGML_TYPES
    from pontil.runtime.loaders.gguf.packed_formats import TABLES

    form = GGML_TYPES[kind]
    blocks = torch.randint(0, 256, (outputs * inputs // form.numbers, form.size), dtype=torch.uint8)
    numbers, scales, offsets = (part.reshape(outputs, -1) for part in LEVELS[kind](blocks))
    steps = STEPS[kind](blocks).reshape(outputs, -1) if kind in STEPS else None
    table = torch.tensor(TABLES[kind], dtype=torch.int8) if kind in TABLES else None
    numbers = numbers if table is None else places_in(table, numbers)
    return QuantizedWeights(numbers, scales, offsets, steps, table)


def taken(kind: str) -> int:
    """About 150 MB, measured by the kernel. The code for it is read before, and large parts are mapped of their own."""
    from pontil.gpu_ops.kernels.weights.matrix import pack
    from pontil.gpu_ops.kernels.weights.quantized import per_channel

    def made(outputs: int) -> "tuple[int, QuantizedWeights | torch.Tensor]":
        if kind == "int8":
            plain = torch.ones(outputs, INPUTS, dtype=torch.bfloat16)
            return plain.nbytes, plain
        weight = levels(int(kind), outputs, INPUTS)
        return sum(part.nbytes for part in (weight.numbers, weight.scales, weight.offsets)), weight

    def packed(weight: "QuantizedWeights | torch.Tensor") -> None:
        pack(per_channel(weight) if isinstance(weight, torch.Tensor) else weight)

    packed(made(OUTPUTS >> 5)[1])
    own, weight = made(OUTPUTS)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before = memory_of("VmRSS")
    packed(weight)
    return memory_of("VmHWM") - before + own


if __name__ == "__main__":
    import_module("app")  # makes the package known that the others import
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 17)
    print(json.dumps({kind: taken(kind) for kind in sys.argv[1:]}))
