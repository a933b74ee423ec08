# SPDX-License-Identifier: Apache-2.0
"""Check the kernels' results on this machine: compilers, processors and hypervisors have faults too."""

from collections.abc import Iterator

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.layer import AttentionHalf, GatedKind, HeadShape, MlpHalf, Norms, Rotation
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.reference import attention_half, mlp_half
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.gpu_ops.kernels.weights.matrix import alternate, pack
from pontil.gpu_ops.kernels.weights.quantized import BLOCK, TABLE, QuantizedWeights
from pontil.gpu_ops.kernels.weights.structures import CELLS
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.cells import row_cells
from pontil.gpu_ops.rotary import rotary_frequencies, rotary_table

SHAPE = HeadShape(heads=6, kv_heads=2, head_dim=32)
HIDDEN, INNER, LENGTH, BLOCK_SIZE = 80, 96, 83, 16
ATTENTION = LayerAttention(1, 0.2, window=70)
# Relative to the size of the layer's contribution. A number between two cells of 8 bits may become the other one.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
TOLERANCE_OF_8_BITS = 1e-3
# Weights are rounded to 12 bits, in some forms.
TOLERANCE_OF_LEVELS = 1e-3
OUTPUTS, INPUTS = 48, 512


def fault(library: KernelLibrary) -> str | None:
    """Describe the fault of the kernels; None when they agree with the reference, and to the bit with themselves."""
    for dtype, tolerance in TOLERANCES.items():
        layer = Layer(library, dtype)
        for cells in (dtype, *CELLS):
            if reason := fault_with(layer, cells, tolerance if cells == dtype else max(tolerance, TOLERANCE_OF_8_BITS)):
                return reason
    return next((reason for form in forms() if (reason := fault_of_form(library, *form))), None)


def fault_of_form(library: KernelLibrary, name: str, weight: QuantizedWeights) -> str | None:
    """Describe the fault of products with whole numbers in this form."""
    x = torch.randn(LENGTH, weight.shape[1], generator=torch.Generator().manual_seed(2)).bfloat16().float()
    matrix, expected = pack(weight), x @ weight.dense().T
    whole = library.linear(matrix, x)
    error = float((whole - expected).norm() / expected.norm())
    if not error < TOLERANCE_OF_LEVELS:
        return f"a product with {name} is off by {error:.1e}"
    parts = [library.linear(matrix, part) for part in x.split([1, 7, 20, LENGTH - 28])]
    return None if torch.equal(torch.cat(parts), whole) else f"rows of a product with {name} depend on the others"


def forms(outputs: int = OUTPUTS, inputs: int = INPUTS) -> Iterator[tuple[str, QuantizedWeights]]:
    """Random weights in every form of whole numbers, whose inputs are a multiple of 256."""
    generator = torch.Generator().manual_seed(3)

    def drawn(low: int, high: int, dtype: torch.dtype, columns: int) -> Tensor:
        return torch.randint(low, high, (outputs, columns), generator=generator).to(dtype)

    groups, steps = inputs // 32, torch.rand(outputs, 2 * inputs // BLOCK, generator=generator).half().float() / 64
    scales, offsets = torch.randn(2, outputs, groups, generator=generator)
    table = drawn(-128, 128, torch.int8, TABLE)[0]
    yield "numbers of 8 bits", QuantizedWeights(drawn(-128, 128, torch.int8, inputs), scales, offsets)
    bits = torch.randn(outputs, inputs, generator=generator).to(torch.float8_e4m3fn).view(torch.uint8)
    yield "floats of 8 bits", QuantizedWeights(bits, scales, torch.zeros_like(scales), floats=True)
    for name, entries in (("numbers of 4 bits", None), ("a table", table)):
        yield name, QuantizedWeights(drawn(0, 16, torch.uint8, inputs), scales, offsets, None, entries)
    step, least = (column.repeat_interleave(BLOCK // 32, 1) for column in (steps[:, ::2], steps[:, 1::2]))
    scales, offsets = step * drawn(0, 64, torch.float32, groups), -least * drawn(0, 64, torch.float32, groups)
    yield "blocks of 4 bits", QuantizedWeights(drawn(0, 16, torch.uint8, inputs), scales, offsets, steps)
    scales = steps[:, ::2].repeat_interleave(BLOCK // 16, 1) * drawn(-128, 128, torch.float32, 2 * groups)
    yield "blocks of 6 bits", QuantizedWeights(drawn(0, 64, torch.uint8, inputs), scales, -32 * scales, steps)


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
        pool = torch.zeros(9, 2, 2, SHAPE.kv_heads, BLOCK_SIZE, row_cells(SHAPE.head_dim, cells), dtype=cells)
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
