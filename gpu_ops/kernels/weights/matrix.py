# SPDX-License-Identifier: Apache-2.0
"""Weights in the layout of the kernels, which csrc/kernels.h describes."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.weights.arena import Arena
from pontil.gpu_ops.kernels.weights.blocks import packed_blocks
from pontil.gpu_ops.kernels.weights.quantized import (
    PIECE,
    TABLE,
    QuantizedWeights,
    can_stack,
    in_full_range,
    packed_numbers,
    packed_scales,
    stacked,
)
from pontil.gpu_ops.kernels.weights.shared_scales import WORDS, padded_words, shared_words, stated_words
from pontil.gpu_ops.kernels.weights.structures import KINDS, AdaptersFields, MatrixFields

PANEL, GROUP = 16, 32
ARENA = Arena()


@dataclass(frozen=True, eq=False)
class Matrix:
    """A weight [outputs, inputs] of float32, bfloat16 or quantized numbers, and its bias, packed. `words` of an output
    hold its inputs, and so many of these share a scale as `scale_words` says. Levels may be places in a `table`, int8
    [16]. A `partial` one has some of the inputs, and its results are parts of sums over ranks. An `odd` one's last
    16 outputs are a panel alone, not half of a group. Its `adapters` may change between two calls."""

    kind: int
    outputs: int
    inputs: int
    words: int
    scale_words: int
    data: Tensor
    scales: Tensor | None
    units: Tensor | None
    bias: Tensor | None
    table: Tensor | None = None
    partial: bool = False
    odd: bool = False
    adapters: AdaptersFields | None = None

    @property
    def parts(self) -> tuple[Tensor | None, ...]:
        return (self.data, self.scales, self.units, self.bias, self.table)

    @cached_property
    def fields(self) -> MatrixFields:
        return self.from_output(0)

    def from_output(self, first: int) -> MatrixFields:
        """The same without the outputs before `first`, a multiple of 32."""
        starts = (first // GROUP, first // GROUP, first, first, 0)
        pointers = (
            None if part is None else part[start:].data_ptr() for part, start in zip(self.parts, starts, strict=True)
        )
        sizes = (self.kind, self.outputs - first, self.inputs, self.words, self.scale_words)
        adapters = None if self.adapters is None else ctypes.addressof(self.adapters)
        return MatrixFields(*pointers, adapters, *sizes, self.partial, first // PANEL, self.odd)


def pack(weight: Tensor | QuantizedWeights, bias: Tensor | None = None, arena: Arena = ARENA) -> Matrix:
    """Pack a weight, whose inputs are a multiple of 16. It is not kept."""
    outputs, inputs = weight.shape
    assert isinstance(weight, Tensor) or weight.order is None, "kernels have no order of inputs"
    own_bias = None if bias is None else arena.copy(padded(bias.float(), GROUP))
    if isinstance(weight, Tensor):
        data = pack_floats(weight, arena)
        return Matrix(KINDS[weight.dtype], outputs, inputs, data.shape[1], 0, data, None, None, own_bias)
    if weight.steps is not None:
        return pack_blocks(weight, own_bias, arena)
    kind, words, per_scale = weight.kind, padded_words(inputs), stated_words(inputs, weight.group)
    scale_words = shared_words(per_scale)
    numbers, scales, units = Grouped(outputs, arena), Grouped(outputs, arena), []
    for rows in pieces(outputs):
        part = in_full_range(weight.rows(rows))
        numbers.put(rows, packed_numbers(padded_inputs(part.numbers, 2 * words), kind))
        scale_bits, unit = packed_scales(part)
        scales.put(rows, padded_inputs(scale_bits.repeat_interleave(per_scale // scale_words, 1), words // scale_words))
        units.append(unit)
    own_units = arena.copy(padded(torch.cat(units), GROUP))
    table = None if weight.table is None else arena.copy(padded(weight.table, TABLE))
    return Matrix(kind, outputs, inputs, words, scale_words, numbers.words, scales.words, own_units, own_bias, table)


def pack_blocks(weight: QuantizedWeights, own_bias: Tensor | None, arena: Arena) -> Matrix:
    outputs, inputs = weight.shape
    blocks, factors = Grouped(outputs, arena), []
    for rows in pieces(outputs):
        data, factor = packed_blocks(weight.rows(rows))
        blocks.put(rows, data)
        factors.append(factor)
    units = arena.copy(padded(torch.cat(factors), GROUP))
    return Matrix(weight.kind, outputs, inputs, inputs // 2, 0, blocks.words, None, units, own_bias)


def pack_floats(weight: Tensor, arena: Arena = ARENA) -> Tensor:
    """Pack [outputs, inputs] to int32 [groups, words, 2, 16]."""
    per_word = 4 // weight.element_size()
    outputs, inputs = weight.shape
    whole = inputs + -inputs % (WORDS * per_word)
    panels = Grouped(outputs, arena)
    for rows in pieces(outputs):
        panels.put(rows, padded_inputs(weight[rows.start : rows.stop], whole).contiguous().view(torch.int32))
    return panels.words


def pieces(outputs: int) -> Iterator[range]:
    """Divide outputs into ranges that are packed at once, so that temporaries are few."""
    return (range(first, min(first + PIECE, outputs)) for first in range(0, outputs, PIECE))


class Grouped:
    """The words of all outputs, int32 [groups, words, 2, 16], written range by range."""

    words: Tensor

    def __init__(self, outputs: int, arena: Arena) -> None:
        self.groups, self.arena = -(-outputs // GROUP), arena

    def put(self, rows: range, words: Tensor) -> None:
        """Write int32 [outputs, words] of a range that begins with a group."""
        if rows.start == 0:
            self.words = self.arena.take((self.groups, words.shape[1], 2, PANEL), torch.int32)
        whole = torch.nn.functional.pad(words, (0, 0, 0, -len(words) % GROUP)) if len(words) % GROUP else words
        panels = whole.view(-1, 2, PANEL, words.shape[1]).permute(0, 3, 1, 2)
        self.words[rows.start // GROUP :][: len(panels)] = panels


def padded_inputs(values: Tensor, size: int) -> Tensor:
    """Pad [outputs, ...] with zeros to [outputs, size]."""
    return values if values.shape[1] == size else torch.nn.functional.pad(values, (0, size - values.shape[1]))


def alternate(gate: Tensor | QuantizedWeights, up: Tensor | QuantizedWeights) -> Tensor | QuantizedWeights:
    """Gates and ups [size, ...], size a multiple of 16, alternating by panels: [2 * size, ...]."""
    stacked_weights = stack(gate, up)
    if isinstance(stacked_weights, QuantizedWeights):
        panels = in_panels(stacked_weights.shape[0])
        return stacked_weights.chosen(panels)
    return stacked_weights[in_panels(len(stacked_weights))]


def alternate_numbers(gate: Tensor, up: Tensor) -> Tensor:
    """The same of biases [size]."""
    return torch.cat([gate, up])[in_panels(2 * len(gate))]


def in_panels(outputs: int) -> Tensor:
    """The places of gates and ups, so many together."""
    return torch.arange(outputs).view(2, -1, PANEL).transpose(0, 1).reshape(-1)


def stack(*parts: Tensor | QuantizedWeights) -> Tensor | QuantizedWeights:
    """One weight with the outputs of all parts: quantized where all of them are, floats or none of them, else in the
    type of those that are not."""
    levels = [part for part in parts if isinstance(part, QuantizedWeights)]
    if len(levels) == len(parts) and can_stack(levels):
        return stacked(levels)
    dtype = next((part.dtype for part in parts if isinstance(part, Tensor)), torch.bfloat16)
    return torch.cat([part.dense().to(dtype) if isinstance(part, QuantizedWeights) else part for part in parts])


def padded(values: Tensor, unit: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, -len(values) % unit))
