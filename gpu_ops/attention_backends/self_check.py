# SPDX-License-Identifier: Apache-2.0
"""A comparison of a backend with Triton's kernels on a few short texts, before a worker uses it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pontil.gpu_ops.attention_backends.backend import AttentionBackend, TileRuns
from pontil.gpu_ops.kv.device_attention import DeviceAttention
from pontil.gpu_ops.kv.device_tile import DeviceTile, cut
from pontil.gpu_ops.parameters.attention import LayerAttention

# Both results are rounded to the type, and weights in between may be. A mask or a page that is wrong in such short
# texts changes results by some tenths.
TOLERANCES = {torch.bfloat16: 3e-2, torch.float16: 6e-3}
LAYERS, LAYER = 2, 1


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The layers of a model, or of a rank's part: their heads, the type of cells, the positions of a page, and the
    windows that occur."""

    heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype
    page_size: int
    windows: tuple[int | None, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The texts' positions: of a page that is begun, is full, or has a page before it, and more than a window."""
        most = max((one for one in self.windows if one is not None and one < 1024), default=0)
        return 1, self.page_size, self.page_size + 1, most + 2 * self.page_size + 3


class SelfCheck:
    """Texts of random keys and values, of which each page lies somewhere in a pool."""

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        self.shape, self.device = shape, device
        self.draw = torch.Generator().manual_seed(1)
        self.pages = [-(-length // shape.page_size) for length in shape.lengths]
        order = (torch.randperm(sum(self.pages), generator=self.draw) + 1).split(self.pages)
        self.tables = torch.zeros(len(order), -(-max(self.pages) // 4) * 4, dtype=torch.int32)
        for row, pages in enumerate(order):
            self.tables[row, : len(pages)] = pages
        size = (sum(self.pages) + 1, LAYERS, 2, shape.kv_heads, shape.page_size, shape.dim)
        self.pool = self.numbers(*size)

    def numbers(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self.draw).to(self.shape.dtype).to(self.device)

    def words(self, numbers: Sequence[int] | Sequence[tuple[int, ...]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32).to(self.device)

    def generated(self) -> tuple[DeviceTile, TileRuns]:
        """The last position of each text, and a row of padding."""
        lengths = (*self.shape.lengths, 0)
        owners = (*range(len(self.tables)), 0)
        none = self.words([-1] * len(lengths))
        tile = DeviceTile(none, none, self.tables.to(self.device), self.words(owners), self.words(lengths))
        ends = np.array(lengths, np.int32)
        return tile, TileRuns(True, len(ends), self.tables.shape[1], np.ones_like(ends), ends)

    def prompts(self) -> tuple[DeviceTile, TileRuns]:
        """The second half of each text, and a row of padding."""
        tiles: list[tuple[int, ...]] = []
        counts: list[int] = []
        for text, length in enumerate(self.shape.lengths):
            tiles += cut(sum(counts), length // 2, length - length // 2, text)
            counts.append(length - length // 2)
        none = self.words([-1] * (sum(counts) + 1))
        tile = DeviceTile(none, none, self.tables.to(self.device), query_tiles=self.words([*tiles, (0, 0, 0, 0)]))
        runs = TileRuns(
            False, len(none), self.tables.shape[1], np.array(counts, np.int32), np.array(self.shape.lengths, np.int32)
        )
        return tile, runs

    def errors(self, backend: AttentionBackend, reference: AttentionBackend) -> Iterator[float]:
        """Yield the largest difference of each kind of tile and layer. NaN is one, too."""
        for tile, runs in (self.generated(), self.prompts()):
            q = self.numbers(len(tile.slots), self.shape.heads, self.shape.dim)
            for window in dict.fromkeys(self.shape.windows):
                layer = LayerAttention(LAYER, self.shape.dim**-0.5, window)
                results = []
                for one in (backend, reference):
                    one.plan(self.pool, lambda runs=runs: runs)  # type: ignore[misc]
                    attention = one.attention(self.pool, tile)
                    assert isinstance(attention, DeviceAttention)
                    results.append(attention.attend(layer, q).float())
                yield float((results[0] - results[1]).abs().max())


def objection(
    backend: AttentionBackend, reference: AttentionBackend, shape: AttentionShape, device: torch.device
) -> str | None:
    """Return what is wrong with a backend's results beside the reference's; None if nothing is."""
    tolerance = TOLERANCES[shape.dtype]
    worst = 0.0
    for error in SelfCheck(shape, device).errors(backend, reference):
        # A comparison with NaN is false.
        if not error <= tolerance:
            worst = max(worst, error) if error == error else error
    if worst == 0.0:
        return None
    return f"its results differ by {worst:.2g} from those of Triton's kernels, where {tolerance:g} may be rounding"
