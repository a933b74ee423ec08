# SPDX-License-Identifier: Apache-2.0
"""The layout of a head's slots in blocks that the kernels write: csrc/kv_layout.h and csrc/scaled_keys.h."""

from collections.abc import Sequence

from torch import Tensor

from pontil.gpu_ops.kernels.weights.matrix import PANEL
from pontil.gpu_ops.kernels.weights.structures import CELLS
from pontil.gpu_ops.kv.cells import movable
from pontil.gpu_ops.parameters.cells import SCALE_BYTES

# Slots whose values of 8 bits are stored together.
PIECE = 8


def key_slots(keys: Tensor) -> Tensor:
    """Packed keys [layers, kv_heads, slots, head_dim] by slot: a view [layers, kv_heads, slots / unit, unit, words,
    cells of a word]."""
    layers, heads, slots, dim = keys.shape
    unit, cells = min(PANEL, slots), cells_of_a_word(keys)
    return keys.view(layers, heads, slots // unit, dim // cells, unit, cells).transpose(3, 4)


def value_slots(values: Tensor) -> Tensor:
    """Packed values [layers, kv_heads, slots, head_dim] by slot: a view [layers, kv_heads, slots / cells, cells of a
    word, head_dim]."""
    layers, heads, slots, dim = values.shape
    cells = cells_of_a_word(values)
    return values.view(layers, heads, slots // cells, dim, cells).transpose(3, 4)


def cells_of_a_word(numbers: Tensor) -> int:
    return 4 // numbers.element_size()


def scaled_slots(part: Tensor, is_key: bool) -> tuple[Tensor, Tensor]:
    """Packed keys or values of 8 bits [layers, kv_heads, slots, head_dim + SCALE_BYTES] by slot: views of the cells and
    of the scales' bytes, [layers, kv_heads, groups, slots of a group, cells or bytes] each."""
    layers, heads, slots, row = part.shape
    dim, group = row - SCALE_BYTES, min(PANEL, slots) if is_key else PIECE
    groups = part.view(layers, heads, slots // group, group * row)
    cells, scales = groups[..., : group * dim], groups[..., group * dim :].unflatten(-1, (group, SCALE_BYTES))
    return cells.unflatten(-1, (dim, group)).transpose(3, 4) if is_key else cells.unflatten(-1, (group, dim)), scales


def parts_of(block: Tensor) -> Sequence[Sequence[Tensor]]:
    """Views of one block's planes by slot, those of keys first: dimensions 2 and 3 are groups of slots and their
    slots."""
    planes = movable(block).unbind(1) if block.dtype in CELLS else block.unbind(1)
    if block.dtype in CELLS:
        return [scaled_slots(plane, is_key=not place) for place, plane in enumerate(planes)]
    return [(value_slots(plane) if place else key_slots(plane),) for place, plane in enumerate(planes)]


def clear_packed(block: Tensor, filled: int) -> None:
    """Zero the slots of one block [layers, planes, kv_heads, slots, cells of a row] from `filled` on."""
    for parts in parts_of(block):
        for slots in parts:
            group, place = divmod(filled, slots.shape[3])
            slots[:, :, group, place:] = 0
            slots[:, :, group + 1 :] = 0


def unpacked(block: Tensor) -> Tensor:
    """A copy of one packed block [layers, planes, kv_heads, slots, cells of a row] in which slots follow each other,
    each with its scale behind it, as in blocks that torch writes."""
    result = block.clone()
    for place, parts in enumerate(parts_of(block)):
        begin = 0
        for part in parts:
            rows = part.flatten(2, 3).flatten(3)
            movable(result)[:, place, :, :, begin : begin + rows.shape[3]] = rows
            begin += rows.shape[3]
    return result
