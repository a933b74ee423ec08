# SPDX-License-Identifier: Apache-2.0
"""Check the kernels' results on this machine: compilers, processors and hypervisors have faults too."""

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.layer import AttentionHalf, GatedKind, HeadShape, MlpHalf, Norms, Rotation
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.reference import attention_half, mlp_half
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.gpu_ops.kernels.weights.matrix import alternate, pack
from pontil.gpu_ops.kernels.weights.structures import CELLS
from pontil.gpu_ops.kv.cells import row_cells
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.rotary import rotary_frequencies, rotary_table

SHAPE = HeadShape(heads=6, kv_heads=2, head_dim=32)
HIDDEN, INNER, LENGTH, BLOCK = 80, 96, 83, 16
ATTENTION = LayerAttention(1, 0.2, window=70)
# Relative to the size of the layer's contribution. A number between two cells of 8 bits may become the other one.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
TOLERANCE_OF_8_BITS = 1e-3


def fault(library: KernelLibrary) -> str | None:
    """Describe the fault of the kernels; None when they agree with the reference, and to the bit with themselves."""
    for dtype, tolerance in TOLERANCES.items():
        layer = Layer(library, dtype)
        for cells in (dtype, *CELLS):
            if reason := fault_with(layer, cells, tolerance if cells == dtype else max(tolerance, TOLERANCE_OF_8_BITS)):
                return reason
    return None


def fault_with(layer: "Layer", cells: torch.dtype, tolerance: float) -> str | None:
    """Describe the layer's fault with keys and values in these cells."""
    subject = str(layer.dtype) if cells == layer.dtype else f"{layer.dtype} with keys in {cells}"
    x = torch.randn(LENGTH, HIDDEN, generator=torch.Generator().manual_seed(2))
    whole, reference = layer.computed(x, [LENGTH], cells), layer.expected(x, cells)
    error = float((whole - reference).norm() / (reference - x).norm())
    if not error < tolerance:
        return f"{subject} is off by {error:.1e}"
    if not torch.equal(layer.computed(x, [1, 40, 1, 1, 29, 11], cells), whole):
        return f"rows of {subject} depend on the others"
    return None


class Layer:
    """A random layer, computed by the kernels and by torch."""

    def __init__(self, library: KernelLibrary, dtype: torch.dtype) -> None:
        self.dtype, self.generator = dtype, torch.Generator().manual_seed(1)
        shape = SHAPE
        sizes = [(shape.heads + 2 * shape.kv_heads) * shape.head_dim, shape.heads * shape.head_dim]
        self.qkv, self.out = self.random(sizes[0], HIDDEN), self.random(HIDDEN, sizes[1])
        self.bias = self.random(sizes[0])
        self.gate, self.up, self.down = (
            self.random(INNER, HIDDEN),
            self.random(INNER, HIDDEN),
            self.random(HIDDEN, INNER),
        )
        self.angles = rotary_table(rotary_frequencies(shape.head_dim, 1e4), LENGTH)
        self.norms = Norms(1e-6, *(self.random(size).float() for size in (HIDDEN, HIDDEN, *[shape.head_dim] * 2)))
        qkv, out = pack(self.qkv, self.bias), pack(self.out)
        self.attention = AttentionHalf(library, qkv, out, self.norms, Rotation(*self.angles), shape, ATTENTION)
        self.mlp = MlpHalf(library, pack(alternate(self.gate, self.up)), pack(self.down), self.norms, GatedKind())

    def random(self, *shape: int) -> Tensor:
        scale: float = shape[-1] ** -0.5
        return (torch.randn(*shape, generator=self.generator) * scale).to(self.dtype)

    def computed(self, x: Tensor, counts: list[int], cells: torch.dtype | None = None) -> Tensor:
        """Compute x in tiles of so many rows, one after the other, with keys and values in `cells`."""
        cells = cells or self.dtype
        pool = torch.zeros(9, 2, 2, SHAPE.kv_heads, BLOCK, row_cells(SHAPE.head_dim, cells), dtype=cells)
        hidden, start = x.clone(), 0
        for part in hidden.split(counts):
            tile = KernelTile(pool, [TileSpan(start, len(part), [3, 1, 8, 2, 5, 7])], self.dtype)
            self.attention(part, tile)
            self.mlp(part, part)
            start += len(part)
        return hidden

    def expected(self, x: Tensor, cells: torch.dtype) -> Tensor:
        weights = (self.qkv, self.bias, self.out)
        hidden = attention_half(x, weights, self.norms, self.angles, SHAPE, ATTENTION, cells)
        return mlp_half(hidden, (self.gate, self.up, self.down), self.norms, gelu=False)
