# SPDX-License-Identifier: Apache-2.0
"""The states of recurrent layers behind the blocks of a KV pool (decision 129).

The states in a sequence's last block are those after its newest computed position, and a block that is full keeps those
after its last one. So a step reads the states of the block with the position before its first one, and writes those of
the blocks that its positions are in: where it crosses into another block, the one before stays as it is from then on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.kv.device_states import DeviceStates
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.recurrent import StateTile
from pontil.gpu_ops.parameters.rotary import HeadTurn


@dataclass(frozen=True, slots=True)
class StateSpan:
    """`count` neighbouring positions of one sequence from `start` on, whose blocks are numbered by `blocks`."""

    start: int
    count: int
    blocks: Sequence[int]


class TileStates:
    """The states of the sequences of a tile, in a pool float32 [block, number] whose blocks are of `block_size`
    positions. The rows of the spans follow each other."""

    def __init__(self, pool: Tensor, block_size: int, spans: Sequence[StateSpan]) -> None:
        self.pool, self.block_size, self.spans = pool, block_size, spans

    def pieces(self, layer: int, numbers: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield the rows of each run of positions that are in one block, in order, with the state of layer number
        `layer`, float32 [numbers]: that before the run, to be changed into that after it."""
        row, own = 0, slice(layer * numbers, (layer + 1) * numbers)
        for span in self.spans:
            at, end = span.start, span.start + span.count
            while at < end:
                place, inside = divmod(at, self.block_size)
                count = min(end - at, self.block_size - inside)
                state = self.pool[span.blocks[place], own]
                if inside == 0 and place:
                    state.copy_(self.pool[span.blocks[place - 1], own])
                elif inside == 0:
                    state.zero_()
                yield slice(row, row + count), state
                at, row = at + count, row + count


def states_on(pool: Tensor, tile: StateTile) -> DeviceStates | TileStates:
    """Return the states of a tile in a pool; where that is on a CPU, those that torch's operations read."""
    if pool.device.type != "cpu":
        return DeviceStates(pool, tile)
    spans = list[StateSpan]()
    for _, start, count, before, *own in tile.spans.tolist():
        # Of the blocks in front of the first position only the last one is read.
        if count:
            spans.append(StateSpan(start, count, [before] * (start // tile.block_size) + own))
    return TileStates(pool, tile.block_size, spans)


class HybridAttention:
    """The attention of a tile whose layers are recurrent in part, which read and write its `states`."""

    def __init__(self, attend: PagedAttention, states: TileStates | DeviceStates) -> None:
        self.attend, self.states = attend, states

    def __call__(
        self, layer: LayerAttention, q: Tensor, k: Tensor, v: Tensor | None, turn: HeadTurn | None = None
    ) -> Tensor:
        return self.attend(layer, q, k, v, turn)
