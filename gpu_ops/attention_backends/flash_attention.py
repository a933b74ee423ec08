# SPDX-License-Identifier: Apache-2.0
"""Attention by FlashAttention-3 (Shah et al., 2024), whose package is built from the folder `hopper` of
github.com/Dao-AILab/flash-attention and has the module flash_attn_interface.

It reads a cache [pages, positions, KV heads, dimensions] with strides of any size but the last, and pages of any
number of positions. All that it starts follows from shapes: it can be recorded.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.attention_backends.tile_runs import prompt_runs, starts_of
from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.kv.device_attention import DeviceAttention
from pontil.gpu_ops.kv.device_tile import DeviceTile
from pontil.gpu_ops.parameters.attention import LayerAttention

Kernel = Callable[..., Tensor]
# A window without an end.
EVERYTHING = (-1, -1)


class FlashAttention(DeviceAttention):
    """The attention of a tile by flash_attn_with_kvcache. Rows of padding see nothing, so they are zeros."""

    def __init__(self, pool: Tensor, tile: DeviceTile, kernel: Kernel) -> None:
        super().__init__(pool, tile)
        self.kernel = kernel
        # A row that is generated is a text of its own.
        self.starts: Tensor | None = None
        if tile.owners is not None and tile.lengths is not None:
            self.tables, self.lengths = tile.tables.index_select(0, tile.owners), tile.lengths
            return
        counts, ends = prompt_runs(tile)
        # The last run has the rows of padding.
        counts = torch.cat((counts, (len(tile.slots) - counts.sum(dtype=torch.int32)).view(1)))
        self.starts, self.lengths = starts_of(counts), torch.cat((ends, ends.new_zeros(1)))
        self.tables = torch.cat((tile.tables, tile.tables.new_zeros(1, tile.tables.shape[1])))

    def attend(self, layer: LayerAttention, q: Tensor) -> Tensor:
        queries = q.to(self.pool.dtype)
        keys, values = (self.pool[:, layer.layer, plane].transpose(1, 2) for plane in range(2))
        made = self.kernel(
            queries.unsqueeze(1) if self.starts is None else queries,
            keys,
            values,
            cache_seqlens=self.lengths,
            page_table=self.tables,
            cu_seqlens_q=self.starts,
            max_seqlen_q=None if self.starts is None else len(queries),
            softmax_scale=layer.scale,
            causal=True,
            window_size=EVERYTHING if layer.window is None else (layer.window - 1, 0),
        )
        return made.view(q.shape).to(q.dtype)


class FlashAttentionBackend(AttentionBackend):
    name: ClassVar[str] = "flash-attn"

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def attention(self, pool: Tensor, tile: DeviceTile) -> PagedAttention:
        return FlashAttention(pool, tile, self.kernel)
