# SPDX-License-Identifier: Apache-2.0
"""The shape of one KV block, from which everything that moves or counts blocks is derived."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from pontil.runtime.cache.prefix import STATE_TOKENS
from pontil.runtime.errors import ModelError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Cells of 8 bits: the numbers of a head of a position are followed by their scale (gpu_ops/kv/cells.py).
EIGHT_BITS = ("int8", "fp8")
SCALE_BYTES = 4
# A page divides the strips of keys that attention reads.
BLOCK_SIZES = (8, 16, 32, 64)
STATE_BYTES = 4


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Block-major: `[block][layer][plane][kv_head][slot]` rows of cells, one block being one contiguous run of bytes.
    There are two `planes`, keys and values, or one where values are a part of the keys (decision 054).

    `dtype` is the cells' type: a key of DTYPE_BYTES, or one of EIGHT_BITS. `packed`: the slots of a head are
    interleaved as the CPU's kernels read them (gpu_ops/kernels/weights/slots.py).

    `num_kv_heads` are the model's. A worker of several `ranks` divides them: this pool holds those of `rank`. Where
    there are fewer heads than ranks, several ranks hold the same head.

    Of a model with recurrent layers a block also has this pool's part of their states behind its last position: so many
    `state_numbers`, float32 (decision 129). Then a block is a row of pages, `[page][layer][plane][kv_head][slot]`, of
    `page_size` positions each, behind which the states fill whole pages too. Else a block is one page.
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
    page_tokens: int | None = None
    state_numbers: int = 0

    def __post_init__(self) -> None:
        if self.page_size not in BLOCK_SIZES:
            raise ModelError(f"--block-size {self.page_size} is not possible: choose one of {BLOCK_SIZES}")

    @property
    def has_states(self) -> bool:
        """Return whether a block is more than its positions: then no part of it is a beginning for others."""
        return self.state_numbers > 0

    @property
    def page_size(self) -> int:
        """The positions whose slots lie together."""
        return self.page_tokens or self.block_size

    @property
    def kv_pages(self) -> int:
        """The pages of a block that hold keys and values."""
        return self.block_size // self.page_size

    @property
    def block_pages(self) -> int:
        return self.kv_pages + -(-self.state_numbers * STATE_BYTES // self.page_bytes)

    def pages_of(self, blocks: Sequence[int], positions: int) -> Sequence[int]:
        """Number the pages of the first so many positions of a sequence with these blocks."""
        count, apart, own = -(-positions // self.page_size), self.block_pages, range(self.kv_pages)
        return [block * apart + page for block in blocks for page in own][:count]

    @property
    def kv_heads(self) -> range:
        """The model's KV heads that this pool holds."""
        return heads_of(self.num_kv_heads, self.rank, self.ranks)

    @property
    def page_shape(self) -> tuple[int, int, int, int, int]:
        return (self.num_layers, self.planes, len(self.kv_heads), self.page_size, self.row_cells)

    @property
    def row_cells(self) -> int:
        """Cells of one head of a position, those that hold its scale included."""
        return self.head_dim + (SCALE_BYTES if self.dtype in EIGHT_BITS else 0)

    @property
    def page_bytes(self) -> int:
        return math.prod(self.page_shape) * DTYPE_BYTES.get(self.dtype, 1)

    @property
    def block_bytes(self) -> int:
        return self.block_pages * self.page_bytes

    @property
    def head_bytes(self) -> int:
        """Bytes of one head in one plane of a layer of a page: they follow each other, packed or not."""
        return self.block_bytes // (self.runs * len(self.kv_heads))

    @property
    def runs(self) -> int:
        """Planes of all layers and pages. In each of them the heads of a block follow each other, but in the states."""
        return self.planes * self.num_layers * self.block_pages

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many positions."""
        return -(-tokens // self.block_size)

    def fingerprint(self) -> str:
        """A hash that is equal for pools whose blocks can be exchanged, however their heads are divided over ranks.
        States are exchanged whole, between equally many."""
        # Layouts without what others have keep the fingerprints that they had before there were others.
        left_out = {"rank"} | (set() if self.has_states else {"ranks", "page_tokens", "state_numbers"})
        left_out |= {"planes"} if self.planes == 2 else set()
        compared_fields = {name: value for name, value in asdict(self).items() if name not in left_out}
        return hashlib.sha256(json.dumps(compared_fields, sort_keys=True).encode()).hexdigest()[:16]


class StoredModel(Protocol):
    """The configuration of a model, as far as it says what is stored for a position and behind a block."""

    @property
    def kv_layers(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def kv_planes(self) -> int: ...

    @property
    def state_numbers(self) -> int: ...


def layout_for(
    model: StoredModel, page_size: int, dtype: str, packed: bool = False, rank: int = 0, ranks: int = 1
) -> KVLayout:
    """Return the layout of a model's blocks in the pool of one rank, with cells of `dtype`. Of a model without states a
    block is a page."""
    usual = KVLayout(
        page_size, model.kv_layers, model.num_kv_heads, model.head_dim, dtype, packed, rank, ranks, model.kv_planes
    )
    numbers = model.state_numbers // ranks
    return replace(usual, block_size=STATE_TOKENS, page_tokens=page_size, state_numbers=numbers) if numbers else usual


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
