# SPDX-License-Identifier: Apache-2.0
"""The model's arithmetic divided over ranks (hash_model.py): each has the cells of its own heads. A follower knows no
tokens of the prefix: it goes on from the hash in its own cells, and brings a digest of all that it has read of a prefix
to the meeting at the end of a tile. The driver knows what that must be."""

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from hash_adapters import HashAdapters
from hash_model import HALF, LOW, HashRunner, cells_of, form_of, mixed
from numpy.typing import NDArray
from virtual_time import HERE

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.runtime.cache.layout import heads_of
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.runner.model_runner import Followers
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch, Span, Tile
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.engine.tiles.rows import rows_of
from pontil.runtime.models.adapters import ModelAdapters

Cost = Callable[[int, int], float]


def digest_of(cells: NDArray[np.int32], end: int) -> int:
    """Return the digest of the cells [block, plane, slot] of a prefix, up to its end."""
    digest = 0
    for plane in range(cells.shape[1]):
        digest = zlib.crc32(cells[:, plane].ravel()[:end].tobytes(), digest)
    return digest


class DividedRunner(HashRunner):
    """The runner of a driver. The other ranks compute every tile together with it."""

    def __init__(
        self, storage: KVStorage, vocab: int, cost: Cost, followers: Followers, communicator: Communicator
    ) -> None:
        super().__init__(storage, vocab, cost)
        self.followers, self.communicator = followers, communicator
        # All block tables by identity, which a plan's writer takes for a guess: that of a new one is not that of one
        # that was freed, which depends on the memory of this process.
        self.tables: dict[int, Sequence[int]] = {}
        ranks = storage.layout.ranks
        self.others = {rank: heads_of(storage.layout.num_kv_heads, rank, ranks) for rank in range(1, ranks)}

    def run(self, batch: Batch) -> list[Sampled]:
        copies = list(batch.copies)
        if copies:
            self.followers.copy(copies)
        self.storage.copy(copies)
        return [sampled for tile in batch.mixed_tiles() for sampled in self.run_tile(tile)]

    def run_tile(self, tile: Tile) -> list[Sampled]:
        plan = rows_of(tile, self.keeps_states).plan
        self.tables.update((id(span.blocks), span.blocks) for span in plan.spans)
        self.followers.run(plan)
        return self.compute_spans(tile.spans, self.seconds_of(tile.spans))

    def read(self, spans: Sequence[Span]) -> list[bool]:
        """Read the prefixes of spans, all ranks together."""
        right = super().read(spans)
        found = self.communicator.gather_columns(torch.zeros(len(spans), 1, dtype=torch.int64)).tolist()
        return [
            own and self.others_are_right(span, digests)
            for span, own, digests in zip(spans, right, found, strict=True)
        ]  # fmt: skip

    def others_are_right(self, span: Span, digests: Sequence[int]) -> bool:
        """Return whether every other rank has read what it should."""
        hashes, end = self.hashes[span.sequence], span.start + span.count
        blocks = -(-end // self.size)
        for rank, heads in self.others.items():
            right = hashes.cells_of(heads, blocks).reshape(blocks, -1, self.size)
            if digests[rank] != digest_of(right, end):
                HERE.world.violate(
                    f"no_wrong_block_is_read: rank {rank} reads wrong KV of {span.sequence.id} before {end}"
                )
                return False
        return True


def exchange_rows(communicator: Communicator) -> None:
    """Meet as ranks do that send each other rows for experts, before what one of them computes and behind it."""
    for _ in range(2):
        communicator.gather_columns(torch.zeros(1, 1))


class RoundsRunner(HashRunner):
    """The runner of a data-parallel rank, which makes each tile's pass together with the others."""

    def __init__(
        self, storage: KVStorage, vocab: int, cost: Cost, rounds: Followers, communicator: Communicator
    ) -> None:
        super().__init__(storage, vocab, cost)
        self.rounds, self.communicator = rounds, communicator

    def run(self, batch: Batch) -> list[Sampled]:
        self.storage.copy(list(batch.copies))
        sampled = list[Sampled]()
        for tile in batch.mixed_tiles():
            self.rounds.run(rows_of(tile, self.keeps_states).plan)
            self.communicator.gather_columns(torch.zeros(1, 1))
            sampled += self.compute_spans(tile.spans, self.seconds_of(tile.spans))
            self.communicator.gather_columns(torch.zeros(1, 1))
        return sampled


class HashTiles:
    """The tiles of a follower (FollowedTiles). `begins` is called with each block that is written from its first
    position on."""

    def __init__(
        self, storage: KVStorage, cost: Cost, communicator: Communicator, begins: Callable[[int], None],
        adapters: ModelAdapters,
    ) -> None:  # fmt: skip
        assert isinstance(adapters, HashAdapters), "the model hashes"
        self.storage, self.cost, self.communicator, self.begins = storage, cost, communicator, begins
        self.adapters = adapters
        self.size, self.cells = storage.layout.block_size, cells_of(storage)
        self.heads = storage.layout.kv_heads

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.storage.copy(list(pairs))

    def take_accepted(self, counts: Sequence[int]) -> None:
        raise AssertionError("no layer has states")

    def follow(self, plan: TilePlan) -> None:
        row = prompt_rows = decode_rows = 0
        for span in plan.spans:
            self.write(span, plan.ids[row : row + span.count])
            row += span.count
            if span.count == 1:
                decode_rows += 1
            else:
                prompt_rows += span.count
        HERE.world.spend(self.cost(prompt_rows, decode_rows))
        read = [[self.read(span.blocks, span.start + span.count)] for span in plan.spans]
        self.communicator.gather_columns(torch.tensor(read, dtype=torch.int64))

    def write(self, span: TileSpan, ids: Sequence[int]) -> None:
        """Write the cells of a span's positions."""
        running = self.running_before(span)
        value = self.adapters.salt(span.adapter, "a follower's row")
        for position, token in enumerate(ids, span.start):
            running = mixed(running ^ value if position == span.adapted_from else running, token)
            block, slot = span.blocks[position // self.size], position % self.size
            if slot == 0:
                self.begins(block)
            self.cells[block, :, slot] = [
                half ^ form_of(head) for half in (running & LOW, running >> HALF) for head in self.heads
            ]

    def running_before(self, span: TileSpan) -> int:
        """Return the hash that the cell before a span holds."""
        if span.start == 0:
            return 0
        before = span.start - 1
        cells = self.cells[span.blocks[before // self.size], :, before % self.size]
        form, high = form_of(self.heads.start), cells[len(self.heads)]
        return (int(high) ^ form) << HALF | int(cells[0]) ^ form

    def read(self, blocks: Sequence[int], end: int) -> int:
        """Return the digest of a prefix's cells."""
        return digest_of(self.cells.take(list(blocks[: -(-end // self.size)]), axis=0), end)
