# SPDX-License-Identifier: Apache-2.0
"""Print the bytes that packing random weights of each ggml type takes at most, the weights themselves among them.

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


def taken(kind: int) -> int:
    """About 150 MB, measured by the kernel. The code for it is read before, and large parts are mapped of their own."""
    from pontil.gpu_ops.kernels.weights.matrix import pack

    pack(levels(kind, OUTPUTS >> 5, INPUTS))
    weight = levels(kind, OUTPUTS, INPUTS)
    own = sum(part.nbytes for part in (weight.numbers, weight.scales, weight.offsets))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before = memory_of("VmRSS")
    pack(weight)
    return memory_of("VmHWM") - before + own


if __name__ == "__main__":
    import_module("app")  # makes the package known that the others import
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 17)
    print(json.dumps({kind: taken(int(kind)) for kind in sys.argv[1:]}))
