# SPDX-License-Identifier: Apache-2.0
"""The shape of one KV block, from which everything that moves or counts blocks is derived."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass

from pontil.runtime.errors import ModelError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Cells of 8 bits: the numbers of a head of a position are followed by their scale (gpu_ops/kv/cells.py).
EIGHT_BITS = ("int8", "fp8")
SCALE_BYTES = 4
# A block divides the strips of keys that attention reads.
BLOCK_SIZES = (8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Block-major: `[block][layer][plane][kv_head][slot]` rows of cells, one block being one contiguous run of bytes.
    There are two `planes`, keys and values, or one where values are a part of the keys (decision 054).

    `dtype` is the cells' type: a key of DTYPE_BYTES, or one of EIGHT_BITS. `packed`: the slots of a head are
    interleaved as the CPU's kernels read them (gpu_ops/kernels/weights/slots.py).

    `num_kv_heads` are the model's. A worker of several `ranks` divides them: this pool holds those of `rank`. Where
    there are fewer heads than ranks, several ranks hold the same head.
    """

    block_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    packed: bool = False
    rank: int = 0
    ranks: int = 1
    planes: int = 2

    def __post_init__(self) -> None:
        if self.block_size not in BLOCK_SIZES:
            raise ModelError(f"--block-size {self.block_size} is not possible: choose one of {BLOCK_SIZES}")

    @property
    def kv_heads(self) -> range:
        """The model's KV heads that this pool holds."""
        return heads_of(self.num_kv_heads, self.rank, self.ranks)

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        return (self.num_layers, self.planes, len(self.kv_heads), self.block_size, self.row_cells)

    @property
    def row_cells(self) -> int:
        """Cells of one head of a position, those that hold its scale included."""
        return self.head_dim + (SCALE_BYTES if self.dtype in EIGHT_BITS else 0)

    @property
    def block_bytes(self) -> int:
        return math.prod(self.block_shape) * DTYPE_BYTES.get(self.dtype, 1)

    @property
    def head_bytes(self) -> int:
        """Bytes of one head in one plane of a layer of a block: they follow each other, packed or not."""
        return self.block_bytes // (self.runs * len(self.kv_heads))

    @property
    def runs(self) -> int:
        """Planes of all layers. In each of them the heads of a block follow each other."""
        return self.planes * self.num_layers

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many positions."""
        return -(-tokens // self.block_size)

    def fingerprint(self) -> str:
        """A hash that is equal for pools whose blocks can be exchanged, however their heads are divided over ranks."""
        # Layouts with two planes have the fingerprints that they had before there were others.
        left_out = {"rank", "ranks"} | ({"planes"} if self.planes == 2 else set())
        compared_fields = {name: value for name, value in asdict(self).items() if name not in left_out}
        return hashlib.sha256(json.dumps(compared_fields, sort_keys=True).encode()).hexdigest()[:16]


def heads_of(heads: int, rank: int, ranks: int) -> range:
    """Return the KV heads of a rank: an equal share of them, or the one that it shares with other ranks."""
    if heads >= ranks:
        share = heads // ranks
        return range(rank * share, (rank + 1) * share)
    head = rank * heads // ranks
    return range(head, head + 1)


def choose_kv_dtype(asked: str, dtype: str) -> str:
    """Return the type of cells for a model that computes in `dtype`. Raises ModelError for one that is not possible."""
    if asked in ("auto", dtype):
        return dtype
    if asked in EIGHT_BITS:
        return asked
    raise ModelError(
        f"--kv-cache-dtype {asked} is not possible with --dtype {dtype}: choose auto, {' or '.join(EIGHT_BITS)}"
    )
