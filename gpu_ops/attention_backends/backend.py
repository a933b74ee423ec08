# SPDX-License-Identifier: Apache-2.0
"""The interface between the steps of a device and what computes their attention."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.kv.device_attention import DeviceAttention
from pontil.gpu_ops.kv.device_tile import DeviceTile

Numbers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TileRuns:
    """The runs of neighbouring positions of a tile, as the host knows them.

    rows, width: of the tile, with padding, and of its tables.
    counts, ends: int32 [runs], the rows of a run, and the positions of its text up to its last row. A tile that is
    `generated` has a run of one row for each of its rows; the end of padding is 0.
    """

    generated: bool
    rows: int
    width: int
    counts: Numbers
    ends: Numbers


class AttentionBackend:
    """The maker of the attention of tiles, here by Triton's kernels. All that an attention starts for a generated tile
    follows from the tile's shapes, so that it can be recorded. The part that follows from numbers of the host is done
    by `plan`, before the tile is started or started again."""

    name: ClassVar[str] = "triton"

    def attention(self, pool: Tensor, tile: DeviceTile) -> PagedAttention:
        """Return the attention of a tile, whose numbers may change at the same addresses until it is started."""
        return DeviceAttention(pool, tile)

    def plan(self, pool: Tensor, runs: Callable[[], TileRuns]) -> None:
        """Prepare the next start of a tile of such a shape."""
