# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of a packed matrix, in the layout of the kernels (csrc/adapters.h)."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.weights.arena import Arena
from pontil.gpu_ops.kernels.weights.matrix import GROUP, PANEL, Matrix, in_panels, padded
from pontil.gpu_ops.kernels.weights.structures import FLOAT32, KINDS, AdapterFields, AdaptersFields
from pontil.gpu_ops.parameters.adapters import LowRank, MadeAdapter


class MatrixAdapters:
    """The adapters by their numbers of one matrix, or of `count` equal ones, as experts have: of each of its parts, so
    many `outputs` each, which `alternate` by panels or stand side by side. No call may compute while they change.

    A part's outputs are whole panels, if it is not the last."""

    def __init__(self, outputs: Sequence[int], *, alternate: bool = False, count: int = 1) -> None:
        assert all(size % PANEL == 0 for size in outputs[:-1])
        parts = torch.cat([torch.full((size,), part, dtype=torch.int32) for part, size in enumerate(outputs)])
        self.outputs, self.order = tuple(outputs), in_panels(len(parts)) if alternate else None
        self.count = count
        self.parts = padded(parts if self.order is None else parts[self.order], GROUP)[::PANEL].contiguous()
        self.fields = AdaptersFields(None, self.parts.data_ptr(), 0, 0)
        self.numbered: dict[int, tuple[AdapterFields, Matrix, Tensor]] = {}
        self.matrix: Matrix | None = None

    def of(self, matrix: Matrix) -> Matrix:
        """Return the matrix with these adapters, which are its own, or its and its equals', from now on."""
        self.matrix = replace(matrix, adapters=self.fields)
        return self.matrix

    def made(self, parts: Sequence[LowRank | None], arena: Arena) -> MadeAdapter:
        """Lay out an adapter's parts, one at least; None for a part that it leaves as it is. Those of several matrices
        are stacked. This may be done while others are computed. All products of an adapter share an arena: few of them
        fill a page."""
        assert self.matrix is not None and len(parts) == len(self.outputs)
        dtype = torch.float32 if self.matrix.kind == FLOAT32 else torch.bfloat16
        rank = max(part.rank for part in parts if part is not None)
        rank += -rank % per_word(dtype)
        # Words of the kernels' numbers: the activations are those of the matrix.
        shrink = torch.zeros(self.count, len(parts) * rank, self.matrix.words * per_word(dtype), dtype=dtype)
        expand = torch.zeros(self.count, sum(self.outputs), rank, dtype=dtype)
        start = 0
        for place, (part, size) in enumerate(zip(parts, self.outputs, strict=True)):
            if part is not None:
                shrink[:, place * rank : place * rank + part.rank, : self.matrix.inputs] = part.down
                expand[:, start : start + size, : part.rank] = part.up
            start += size
        packed = packed_alone(shrink, arena)
        panels = arena.copy(in_layout(expand if self.order is None else expand[:, self.order], dtype))
        apart = packed.data[0].numel(), panels[0].numel() // per_word(dtype)
        made = AdapterFields(packed.fields, panels.data_ptr(), *apart, rank, 0), packed, panels
        nbytes = packed.data.nbytes + panels.nbytes
        return MadeAdapter(nbytes, lambda number: self.put(number, made))

    def put(self, number: int, made: tuple[AdapterFields, Matrix, Tensor]) -> None:
        self.numbered[number] = made
        self.tell()

    def remove(self, number: int) -> None:
        if self.numbered.pop(number, None) is not None:
            self.tell()

    def tell(self) -> None:
        """Have the kernels see what there is now."""
        count = max(self.numbered, default=-1) + 1
        slots = (AdapterFields * count)()
        for number, (fields, _, _) in self.numbered.items():
            slots[number] = fields
        self.fields.slots = ctypes.cast(slots, ctypes.POINTER(AdapterFields))
        self.fields.count = count
        self.slots = slots


def per_word(dtype: torch.dtype) -> int:
    """The numbers in a word of 32 bits."""
    return 4 // dtype.itemsize


def packed_alone(weights: Tensor, arena: Arena) -> Matrix:
    """Pack equal weights [count, outputs, inputs], padded to the words of their kernels, and return the first. They are
    odd where that takes less memory: with so few outputs, half a group of padding may be half of what is read."""
    words, (count, outputs, inputs) = weights.view(torch.int32), weights.shape
    whole = torch.nn.functional.pad(words, (0, 0, 0, -outputs % PANEL))
    pairs, last = whole.split([whole.shape[1] - whole.shape[1] % GROUP, whole.shape[1] % GROUP], dim=1)
    in_groups = pairs.view(count, -1, 2, PANEL, words.shape[2]).permute(0, 1, 4, 2, 3)
    data = arena.copy(torch.cat([in_groups.flatten(1), last.transpose(1, 2).flatten(1)], dim=1))
    odd = last.shape[1] > 0
    return Matrix(KINDS[weights.dtype], outputs, inputs, words.shape[2], 0, data, None, None, None, odd=odd)


def in_layout(expand: Tensor, dtype: torch.dtype) -> Tensor:
    """[count, outputs, rank] as [count, panels, words, 16, numbers of a word]."""
    whole = torch.nn.functional.pad(expand, (0, 0, 0, -expand.shape[1] % GROUP))
    words = expand.shape[2] // per_word(dtype)
    return whole.view(len(whole), -1, PANEL, words, per_word(dtype)).transpose(2, 3).contiguous()
