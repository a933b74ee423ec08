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
    """The adapters of one matrix by their numbers: of each of its parts, so many `outputs` each, which `alternate` by
    panels or stand side by side. No call may compute while they change.

    A part's outputs are whole panels where there are several."""

    def __init__(self, outputs: Sequence[int], *, alternate: bool = False) -> None:
        assert len(outputs) == 1 or all(size % PANEL == 0 for size in outputs)
        parts = torch.cat([torch.full((size,), part, dtype=torch.int32) for part, size in enumerate(outputs)])
        self.outputs, self.order = tuple(outputs), in_panels(len(parts)) if alternate else None
        self.parts = padded(parts if self.order is None else parts[self.order], GROUP)[::PANEL].contiguous()
        self.fields = AdaptersFields(None, self.parts.data_ptr(), 0, 0)
        self.numbered: dict[int, tuple[AdapterFields, Matrix, Tensor]] = {}
        self.matrix: Matrix | None = None

    def of(self, matrix: Matrix) -> Matrix:
        """Return the matrix with these adapters, which are its own from now on."""
        self.matrix = replace(matrix, adapters=self.fields)
        return self.matrix

    def made(self, parts: Sequence[LowRank | None], arena: Arena) -> MadeAdapter:
        """Lay out an adapter's parts, one at least; None for a part that it leaves as it is. This may be done while
        others are computed. All products of an adapter share an arena: few of them fill a page."""
        assert self.matrix is not None and len(parts) == len(self.outputs)
        dtype = torch.float32 if self.matrix.kind == FLOAT32 else torch.bfloat16
        rank = max(part.rank for part in parts if part is not None)
        rank += -rank % per_word(dtype)
        shrink = torch.zeros(len(parts) * rank, self.matrix.inputs)
        expand = torch.zeros(sum(self.outputs), rank)
        start = 0
        for place, (part, size) in enumerate(zip(parts, self.outputs, strict=True)):
            if part is not None:
                shrink[place * rank : place * rank + part.rank] = part.down
                expand[start : start + size, : part.rank] = part.up
            start += size
        # Words of the kernels' numbers: the activations are those of the matrix.
        whole = self.matrix.words * per_word(dtype)
        shrink = torch.nn.functional.pad(shrink, (0, whole - shrink.shape[1]))
        packed = packed_alone(shrink.to(dtype), arena)
        panels = arena.copy(in_layout(expand if self.order is None else expand[self.order], dtype))
        made = AdapterFields(packed.fields, panels.data_ptr(), rank, 0), packed, panels
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


def packed_alone(weight: Tensor, arena: Arena) -> Matrix:
    """Pack a weight [outputs, inputs], padded to the words of its kernels. It is odd where that takes less memory: with
    so few outputs, half a group of padding may be half of what is read."""
    words = weight.contiguous().view(torch.int32)
    whole = torch.nn.functional.pad(words, (0, 0, 0, -len(words) % PANEL))
    pairs, last = whole.split([len(whole) - len(whole) % GROUP, len(whole) % GROUP])
    in_groups = pairs.view(-1, 2, PANEL, words.shape[1]).permute(0, 3, 1, 2)
    data = arena.copy(torch.cat([in_groups.flatten(), last.T.flatten()]))
    outputs, inputs = weight.shape
    odd = len(last) > 0
    return Matrix(KINDS[weight.dtype], outputs, inputs, words.shape[1], 0, data, None, None, None, odd=odd)


def in_layout(expand: Tensor, dtype: torch.dtype) -> Tensor:
    """[outputs, rank] as [panels, words, 16, numbers of a word]."""
    whole = torch.nn.functional.pad(expand, (0, 0, 0, -len(expand) % GROUP)).to(dtype)
    return whole.view(-1, PANEL, expand.shape[1] // per_word(dtype), per_word(dtype)).transpose(1, 2).contiguous()
