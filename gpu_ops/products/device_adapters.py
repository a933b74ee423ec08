# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of some of a product's rows, by kernels of a device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pontil.gpu_ops.parameters.adapters import MOST_NUMBERS, MOST_RANK, RANK_STEP, LowRank, MadeAdapter
from pontil.gpu_ops.products.adapters import RowAdapters


class DeviceAdapters:
    """The adapters by their numbers of one product on a device, or of equal ones, as ProductAdapters has them.

    Recorded steps read a table at an address that stays: where each adapter's matrices are, in memory of its own.
    A change of it is started behind all steps that were, and before those that follow; so is what takes the memory of
    an adapter that was removed."""

    def __init__(self, rows: RowAdapters, outputs: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        # A machine without devices has no Triton.
        from pontil.gpu_ops.triton.per_sequence.adapters import blocks_of

        self.rows, self.outputs, self.dtype, self.device = rows, tuple(outputs), dtype, device
        self.most_ranks = len(self.outputs) * MOST_RANK
        self.table = torch.zeros(MOST_NUMBERS, 2 + 3 * len(self.outputs), dtype=torch.int64, device=device)
        self.blocks = torch.tensor(blocks_of(self.outputs), dtype=torch.int32).to(device)
        self.numbered: dict[int, Tensor] = {}

    def made(self, parts: Sequence[LowRank | None], arena: object = None) -> MadeAdapter:
        """Lay out an adapter's parts; None for a part that it leaves as it is. Those of several products are stacked,
        and lie one product behind the other. This may be done in another thread while others are computed."""
        padded = [None if part is None else part.padded(RANK_STEP) for part in parts]
        given = [one for one in padded if one is not None]
        downs = torch.cat([one.down for one in given], dim=-2) if given else torch.zeros(0)
        memory = torch.cat([one.to(self.dtype).flatten() for one in (downs, *(one.up for one in given))])
        memory = memory.to(self.device)
        ranks = sum(one.rank for one in given)
        address, size = address_of(memory), memory.element_size()
        row, first = [address, ranks], 0
        address += downs.numel() * size
        for one in padded:
            row += (0, 0, 0) if one is None else (address, one.rank, first)
            address += 0 if one is None else one.up.numel() * size
            first += 0 if one is None else one.rank
        fields = torch.tensor(row, dtype=torch.int64).to(self.device)
        return MadeAdapter(memory.nbytes, lambda number: self.put(number, memory, fields))

    def put(self, number: int, memory: Tensor, fields: Tensor) -> None:
        self.numbered[number] = memory
        self.table[number].copy_(fields)

    def remove(self, number: int) -> None:
        if number in self.numbered:
            self.table[number].zero_()
            del self.numbered[number]

    def add(self, x: Tensor, made: Tensor) -> Tensor:
        """Add to `made` [rows, outputs], which was made of x [rows, inputs], what the rows' adapters make of x."""
        if len(self.rows.tiles):
            from pontil.gpu_ops.triton.per_sequence.adapters import add_low_rank

            add_low_rank(x, made, self.rows.order, self.rows.tiles, self.table, self.blocks, self.most_ranks)
        return made


def address_of(memory: Tensor) -> int:
    """Return where a tensor's numbers begin, for kernels."""
    return memory.data_ptr()
