# SPDX-License-Identifier: Apache-2.0
"""Weights laid out for the kernels, which csrc/kernels.h describes."""

import mmap

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.structures import KINDS, MatrixFields

PANEL, GROUP = 16, 32
# The number of words of an output is a multiple of this.
WORDS = 16
HUGE_PAGE = 2 << 20


class Matrix:
    """A weight [outputs, inputs] of float32 or bfloat16 and its bias, packed; the originals are not kept.

    `inputs` is a multiple of 16.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.outputs, self.inputs = weight.shape
        self.data = pack(weight)
        self.bias = None if bias is None else padded(bias.float(), GROUP)
        self.fields = MatrixFields(
            self.data.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            KINDS[weight.dtype],
            self.outputs,
            self.inputs,
            self.data.shape[1],
        )


def pack(weight: Tensor) -> Tensor:
    """int32 [groups, words, 2, 16] from [outputs, inputs]."""
    outputs, inputs = weight.shape
    per_word = 4 // weight.element_size()
    rows, words = outputs + -outputs % GROUP, (inputs + -inputs % (WORDS * per_word)) // per_word
    whole = weight.new_zeros(rows, words * per_word)
    whole[:outputs, :inputs] = weight
    packed = whole.view(torch.int32).view(rows // GROUP, 2, PANEL, words).permute(0, 3, 1, 2)
    return room(packed.shape).copy_(packed)


def alternate(gate: Tensor, up: Tensor) -> Tensor:
    """Gates and ups [size, ...], size a multiple of 16, alternating by panels: [2 * size, ...]."""
    rest = gate.shape[1:]
    return torch.stack((gate.view(-1, PANEL, *rest), up.view(-1, PANEL, *rest)), dim=1).view(-1, *rest)


def padded(values: Tensor, unit: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, -len(values) % unit))


def room(shape: torch.Size) -> Tensor:
    """int32 memory on huge pages where the system has them: weights are read from end to end in every step."""
    size = 4 * shape.numel()
    # One huge page more, so that the weights can start at the beginning of one.
    memory = mmap.mmap(-1, size + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(memory, dtype=torch.int32)
    if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -whole.data_ptr() % HUGE_PAGE // 4 if size >= HUGE_PAGE else 0
    return whole[start : start + shape.numel()].view(shape)
