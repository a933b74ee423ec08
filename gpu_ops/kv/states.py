# SPDX-License-Identifier: Apache-2.0
"""The states of recurrent layers behind the blocks of a KV pool (decision 129).

The states in a sequence's last block are those after its newest computed position, and a block that is full keeps those
after its last one. So a step reads the states of the block with the position before its first one, and writes those of
the blocks that its positions are in: where it crosses into another block, the one before stays as it is from then on.

A step that verifies guesses writes no states of their sequences. Once it is known how many guesses were right, these
positions are taken in, and no others (decision 153): so no state ever goes back.
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
    """`count` neighbouring positions of one sequence from `start` on, whose blocks are numbered by `blocks`. If it
    `verifies` guesses, the last ones may turn out to be wrong."""

    start: int
    count: int
    blocks: Sequence[int]
    verifies: bool = False


class TileStates:
    """The states of the sequences of a tile, in a pool float32 [block, number] whose blocks are of `block_size`
    positions. The rows of the spans follow each other.

    Of those that verify guesses, kernels keep what it takes to take them in later in `kept`, float32 [rows, number];
    torch's operations keep the state after each row, `after`, by the number of the span, with its place in the pool."""

    def __init__(self, pool: Tensor, block_size: int, spans: Sequence[StateSpan], kept: Tensor | None = None) -> None:
        self.pool, self.block_size, self.spans, self.kept = pool, block_size, spans, kept
        self.after: dict[int, list[tuple[slice, list[Tensor]]]] = {}

    @property
    def verifies(self) -> bool:
        return any(span.verifies for span in self.spans)

    def pieces(self, layer: int, numbers: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield the rows of each run of positions that are in one block, in order, with the state of layer number
        `layer`, float32 [numbers]: that before the run, to be changed into that after it. Each row that verifies a
        guess is a run."""
        row, own = 0, slice(layer * numbers, (layer + 1) * numbers)
        for number, span in enumerate(self.spans):
            for count, state in self.guesses(number, own) if span.verifies else self.runs(span, own):
                yield slice(row, row + count), state
                row += count

    def runs(self, span: StateSpan, own: slice) -> Iterator[tuple[int, Tensor]]:
        at, end = span.start, span.start + span.count
        while at < end:
            place, inside = divmod(at, self.block_size)
            count = min(end - at, self.block_size - inside)
            state = self.pool[span.blocks[place], own]
            if inside == 0:
                state.copy_(self.before(span, at, own))
            yield count, state
            at += count

    def guesses(self, number: int, own: slice) -> Iterator[tuple[int, Tensor]]:
        span, after = self.spans[number], list[Tensor]()
        self.after.setdefault(number, []).append((own, after))
        state = self.before(span, span.start, own)
        for _ in range(span.count):
            state = state.clone()
            after.append(state)
            yield 1, state

    def before(self, span: StateSpan, at: int, own: slice) -> Tensor:
        """The state before a position."""
        if at == 0:
            return self.pool.new_zeros(own.stop - own.start)
        return self.pool[span.blocks[(at - 1) // self.block_size], own]

    def take(self, counts: Sequence[int]) -> None:
        """Write the states after the first so many positions of each span that verified guesses, in order."""
        for number, count in zip(self.after, counts, strict=True):
            span = self.spans[number]
            end = span.start + count
            for place in range(span.start // self.block_size, -(-end // self.block_size)) if count else ():
                last = min(end, (place + 1) * self.block_size) - 1
                for own, after in self.after[number]:
                    self.pool[span.blocks[place], own] = after[last - span.start]


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
