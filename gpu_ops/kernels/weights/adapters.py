# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of a packed matrix, in the layout of the kernels (csrc/adapters.h)."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.weights.arena import Arena
from pontil.gpu_ops.kernels.weights.matrix import GROUP, PANEL, Matrix, in_panels, pack, padded
from pontil.gpu_ops.kernels.weights.structures import FLOAT32, AdapterFields, AdaptersFields
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
        rank = max(part.rank for part in parts if part is not None)
        dtype = torch.float32 if self.matrix.kind == FLOAT32 else torch.bfloat16
        shrink = torch.zeros(len(parts) * rank, self.matrix.inputs)
        expand = torch.zeros(sum(self.outputs), rank)
        start = 0
        for place, (part, size) in enumerate(zip(parts, self.outputs, strict=True)):
            if part is not None:
                shrink[place * rank : place * rank + part.rank] = part.down
                expand[start : start + size, : part.rank] = part.up
            start += size
        # Words of the kernels' numbers: the activations are those of the matrix.
        whole = self.matrix.words * (1 if dtype == torch.float32 else 2)
        shrink = torch.nn.functional.pad(shrink, (0, whole - shrink.shape[1]))
        packed = pack(shrink.to(dtype), None, arena)
        assert packed.words == self.matrix.words
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


def in_layout(expand: Tensor, dtype: torch.dtype) -> Tensor:
    """[outputs, rank] as [panels, rank, 16]."""
    rank = expand.shape[1]
    whole = torch.nn.functional.pad(expand, (0, 0, 0, -len(expand) % GROUP))
    return whole.view(-1, PANEL, rank).transpose(1, 2).to(dtype).contiguous()
