# SPDX-License-Identifier: Apache-2.0
"""Paged attention on devices, by kernels. The operations of gpu_ops/kv/attention.py are its reference."""

from torch import Tensor

from pontil.gpu_ops.kv.device_tile import QUERY_TILE, DeviceTile
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.cells import LARGEST
from pontil.gpu_ops.parameters.rotary import HeadTurn
from pontil.gpu_ops.rotary import turn_heads


class DeviceAttention:
    """A PagedAttention of a tile that is on the pool's device. Everything it starts follows from shapes: it can be
    recorded once and started again for other numbers in the same memory."""

    def __init__(self, pool: Tensor, tile: DeviceTile) -> None:
        self.pool, self.tile = pool, tile

    def __call__(
        self, layer: LayerAttention, q: Tensor, k: Tensor, v: Tensor | None, turn: HeadTurn | None = None
    ) -> Tensor:
        return self.attend(layer, self.written(layer, q, k, v, turn))

    def written(self, layer: LayerAttention, q: Tensor, k: Tensor, v: Tensor | None, turn: HeadTurn | None) -> Tensor:
        """Store k and v, and return the queries, turned if the keys were."""
        # A machine without devices has no Triton.
        from pontil.gpu_ops.triton.paged_kv import write_kv
        from pontil.gpu_ops.triton.rotary import turn_and_write

        # A row's largest number has to be known before any of its cells of 8 bits.
        if turn is None or v is None or self.pool.dtype in LARGEST:
            q, k = (q, k) if turn is None else turn_heads(q, k, turn)
            write_kv(self.pool, layer.layer, self.tile.slots, k, v)
            return q
        return turn_and_write(self.pool, layer.layer, self.tile.slots, q, k, v, turn)

    def attend(self, layer: LayerAttention, q: Tensor) -> Tensor:
        """Attend to what the pool has."""
        from pontil.gpu_ops.triton.decode_attention import decode
        from pontil.gpu_ops.triton.prompt_attention import prompt

        tile = self.tile
        if tile.owners is not None and tile.lengths is not None:
            return decode(self.pool, layer, q, tile.tables, tile.owners, tile.lengths)
        assert tile.query_tiles is not None
        return prompt(self.pool, layer, q, tile.tables, tile.query_tiles, QUERY_TILE)
