# SPDX-License-Identifier: Apache-2.0
"""Attention by FlashInfer (Ye et al., 2025), of the package flashinfer-python.

It divides the work of a tile on the host, by the lengths of its texts, and copies what it found to the device: `plan`,
before the tile starts. What is recorded reads memory at fixed addresses: the division, and the numbers of pages, which
are listed by the recorded step itself. Only one tile runs at a time, so that tiles of all shapes share that memory.
Caches are [pages, KV heads, positions, dimensions] ("HND") of any stride but the last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from pontil.gpu_ops.attention_backends.backend import AttentionBackend, Numbers, TileRuns
from pontil.gpu_ops.attention_backends.tile_runs import page_list, pages_of, prompt_runs
from pontil.gpu_ops.device_mark import DeviceMark
from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.kv.device_attention import DeviceAttention
from pontil.gpu_ops.kv.device_tile import DeviceTile
from pontil.gpu_ops.parameters.attention import LayerAttention

LAYOUT = "HND"
# Parts of texts that are divided among programs. With few KV heads and long prompts 128 MiB, which the package
# recommends, do not suffice.
PARTS_BYTES = 384 << 20
# The division of a generated tile's work: some numbers for each of at most some thousand programs.
DIVISION_BYTES = 1 << 20
# Query heads of a KV head from which products of many queries pay.
TOGETHER = 4


class Mark(Protocol):
    """A place in a device's stream."""

    def wait(self) -> None:
        """Wait until all that stands before it is over. Raises DeviceLate."""


class HostSide(Protocol):
    """The host's memory, and its waiting, as copies to a device need them."""

    def numbers(self, count: int) -> Tensor:
        """Return int32 zeros in memory of the host from which a device copies by itself."""

    def mark(self) -> Mark:
        """Mark the end of what was started."""


class CudaHost:
    """The host of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def numbers(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int32, pin_memory=True)

    def mark(self) -> Mark:
        return DeviceMark(self.device)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """The properties of a layer on which a plan depends."""

    heads: int
    window: int | None
    scale: float

    @property
    def options(self) -> dict[str, Any]:
        return {"window_left": -1 if self.window is None else self.window - 1, "sm_scale": self.scale}


class SharedMemory:
    """The memory at fixed addresses that all tiles share: pages, of `rows` texts of `width` pages at most."""

    def __init__(self, device: torch.device, rows: int, width: int) -> None:
        self.device, self.rows = device, rows
        # The package wants zeros for the first use.
        self.parts = torch.zeros(PARTS_BYTES, dtype=torch.uint8, device=device)
        self.indptr = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.last = torch.zeros(rows, dtype=torch.int32, device=device)
        self.pages = torch.zeros(rows * width, dtype=torch.int32, device=device)
        self.divisions: dict[LayerKind, Tensor] = {}

    def division(self, kind: LayerKind) -> Tensor:
        """The memory for the division of a generated tile's work, of one kind of layers."""
        if kind not in self.divisions:
            self.divisions[kind] = torch.empty(DIVISION_BYTES, dtype=torch.uint8, device=self.device)
        return self.divisions[kind]


class PlannedTile:
    """The wrappers of tiles of one shape, one for each kind of layers. A kind is known once a layer of it was computed.

    The package copies from memory of the host that it writes in each plan, as do we: `copied` is behind the copies of
    the last one. These stand before the tile's layers, so that no more than the step before is waited for."""

    def __init__(self, package: Any, pool: Tensor, memory: SharedMemory, host: HostSide, runs: TileRuns) -> None:
        self.package, self.memory = package, memory
        _, _, _, self.kv_heads, self.page_size, self.dim = pool.shape
        self.dtype, self.runs = pool.dtype, runs
        self.host, self.numbers = host, [host.numbers(memory.rows + 1) for _ in range(3)]
        self.wrappers: dict[LayerKind, Any] = {}
        self.copied: Mark | None = None

    def plan(self, runs: TileRuns) -> None:
        """Divide the work of a tile anew, for all known kinds of layers."""
        if self.copied is not None:
            self.copied.wait()
        self.runs = runs
        self.write(runs)
        self.pages = self.page_memory(runs)
        for kind in self.wrappers:
            self.plan_kind(kind)
        self.copied = self.host.mark()

    def write(self, runs: TileRuns) -> None:
        """Write where the pages and rows of each run begin, and the positions of its last page."""
        size, count = self.page_size, len(runs.ends)
        pages: Numbers = (-(-runs.ends // size)).clip(1)
        self.total = int(pages.sum())
        indptr, last, rows = self.numbers
        indptr.numpy()[1 : count + 1] = pages.cumsum()
        last.numpy()[:count] = (runs.ends - 1).clip(0) % size + 1
        rows.numpy()[1 : count + 1] = runs.counts.cumsum()
        self.indptr, self.last, self.rows = indptr[: count + 1], last[:count], rows[: count + 1]

    def page_memory(self, runs: TileRuns) -> Tensor:
        if runs.generated:
            return self.memory.pages[: runs.rows * runs.width]
        return torch.empty(self.total, dtype=torch.int32, device=self.memory.device)

    def wrapper(self, kind: LayerKind) -> Any:
        """The wrapper for a kind of layers, planned. A new kind occurs only outside of recordings: what is recorded has
        run once before."""
        if kind not in self.wrappers:
            self.wrappers[kind] = self.decoding(kind) if self.runs.generated else self.prompts()
            self.plan_kind(kind)
            self.copied = self.host.mark()
        return self.wrappers[kind]

    def decoding(self, kind: LayerKind) -> Any:
        memory, rows = self.memory, self.runs.rows
        made = self.package.BatchDecodeWithPagedKVCacheWrapper(
            memory.parts,
            LAYOUT,
            use_cuda_graph=True,
            use_tensor_cores=kind.heads // self.kv_heads >= TOGETHER,
            paged_kv_indptr_buffer=memory.indptr[: rows + 1],
            paged_kv_indices_buffer=memory.pages,
            paged_kv_last_page_len_buffer=memory.last[:rows],
        )
        made.reset_workspace_buffer(memory.parts, memory.division(kind))
        return made

    def prompts(self) -> Any:
        return self.package.BatchPrefillWithPagedKVCacheWrapper(self.memory.parts, LAYOUT)

    def plan_kind(self, kind: LayerKind) -> None:
        shapes = (kind.heads, self.kv_heads, self.dim, self.page_size)
        options = {**kind.options, "q_data_type": self.dtype, "kv_data_type": self.dtype}
        # The numbers of pages are written there before the layers run.
        pages = self.pages[: self.total]
        if self.runs.generated:
            self.wrappers[kind].plan(self.indptr, pages, self.last, *shapes, **options)
        else:
            self.wrappers[kind].plan(self.rows, self.indptr, pages, self.last, *shapes, causal=True, **options)


class FlashInferAttention(DeviceAttention):
    """The attention of a tile whose work is divided."""

    def __init__(self, pool: Tensor, tile: DeviceTile, planned: PlannedTile) -> None:
        super().__init__(pool, tile)
        self.planned = planned
        if tile.owners is not None and tile.lengths is not None:
            owners, lengths = tile.owners, tile.lengths
        else:
            lengths = prompt_runs(tile)[1]
            owners = torch.arange(len(lengths), dtype=torch.int32, device=lengths.device)
        pages = planned.pages
        pages.copy_(page_list(tile.tables, owners, pages_of(lengths, planned.page_size), len(pages)))

    def attend(self, layer: LayerAttention, q: Tensor) -> Tensor:
        wrapper = self.planned.wrapper(LayerKind(q.shape[1], layer.window, layer.scale))
        cache = self.pool[:, layer.layer, 0], self.pool[:, layer.layer, 1]
        queries = q.to(self.pool.dtype)
        if self.tile.lengths is not None:
            made = wrapper.run(queries, cache)
            return torch.where((self.tile.lengths > 0)[:, None, None], made.to(q.dtype), 0.0)
        used = int(self.planned.runs.counts.sum())
        out = torch.zeros_like(q)
        out[:used] = wrapper.run(queries[:used], cache)
        return out


class FlashInferBackend(AttentionBackend):
    """Tiles of one engine: generated ones of at most `rows` rows, with tables of at most `width` pages."""

    name: ClassVar[str] = "flashinfer"

    def __init__(self, package: Any, device: torch.device, host: HostSide, rows: int, width: int) -> None:
        self.package, self.host = package, host
        self.memory = SharedMemory(device, rows, width)
        self.generated: dict[tuple[int, int], PlannedTile] = {}
        self.prompts: PlannedTile | None = None

    def plan(self, pool: Tensor, runs: Callable[[], TileRuns]) -> None:
        made = runs()
        self.of_shape(pool, made).plan(made)

    def of_shape(self, pool: Tensor, runs: TileRuns) -> PlannedTile:
        shape = (runs.rows, runs.width)
        if runs.generated:
            if shape not in self.generated:
                self.generated[shape] = PlannedTile(self.package, pool, self.memory, self.host, runs)
            return self.generated[shape]
        if self.prompts is None:
            self.prompts = PlannedTile(self.package, pool, self.memory, self.host, runs)
        return self.prompts

    def attention(self, pool: Tensor, tile: DeviceTile) -> PagedAttention:
        planned = self.prompts
        if tile.lengths is not None:
            planned = self.generated[len(tile.lengths), tile.tables.shape[1]]
        assert planned is not None, "a tile is planned before it starts"
        return FlashInferAttention(pool, tile, planned)
