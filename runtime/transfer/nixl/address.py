# SPDX-License-Identifier: Apache-2.0
"""A pool of KV blocks as NIXL reaches it, ours or a peer's."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pontil.runtime.cache.storage import EPOCH_SLOTS
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.connector import Pair, runs
from pontil.runtime.transfer.descriptor import num_blocks, part, secret, whole
from pontil.runtime.transfer.nixl.agent import KIND, Rows

MEMORIES = ("DRAM", "VRAM")
AGENT_BYTES, ADDRESS_BYTES, DIGEST_BYTES = 16, 8, 32
# Our own metadata has about 500 bytes, and some more for each network device.
LARGEST_METADATA = 64 << 10
CELL_BYTES = 8


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """The addresses of a pool in its own process: of the epoch cells in host memory, and of its blocks of `block_bytes`
    with the KV heads `heads`, in `memory` (DRAM or VRAM) of that `device`."""

    cells: int
    blocks: int
    memory: str
    device: int
    num_blocks: int
    block_bytes: int
    heads: range

    def cell_row(self, slot: int) -> Rows:
        return np.array([[self.cells + slot * CELL_BYTES, CELL_BYTES, 0]], np.uint64)

    def whole_rows(self, spans: Sequence[tuple[int, int]]) -> Rows:
        """Return a row for each span of blocks, given as (first block, count)."""
        size = self.block_bytes
        return np.array([(self.blocks + first * size, count * size, self.device) for first, count in spans], np.uint64)

    def slice_rows(self, blocks: Sequence[int], heads: range, runs: int) -> Rows:
        """Return a row for these heads in each of the `runs` planes of all layers of each block."""
        run = self.block_bytes // runs
        head = run // len(self.heads)
        first = self.blocks + (heads.start - self.heads.start) * head
        rows = np.empty((len(blocks), runs, 3), np.uint64)
        starts = np.array(blocks, np.uint64)[:, None] * np.uint64(self.block_bytes)
        rows[..., 0] = starts + np.arange(runs, dtype=np.uint64) * np.uint64(run) + np.uint64(first)
        rows[..., 1], rows[..., 2] = len(heads) * head, self.device
        return rows.reshape(-1, 3)


def rows_of(
    pairs: Sequence[Pair], ours: PoolMemory, theirs: PoolMemory, heads: range, planes: int
) -> tuple[Rows, Rows]:
    """Return what to write and what to read, row by row of the same size, for these heads of each pair's blocks. The
    layers of a block have so many `planes`."""
    if ours.heads == theirs.heads == heads:
        merged_runs = runs(pairs)
        return (
            ours.whole_rows([(mine, count) for _, mine, count in merged_runs]),
            theirs.whole_rows([(their_block, count) for their_block, _, count in merged_runs]),
        )
    return (
        ours.slice_rows([mine for _, mine in pairs], heads, planes),
        theirs.slice_rows([their_block for their_block, _ in pairs], heads, planes),
    )


@dataclass(frozen=True, slots=True)
class NixlAddress:
    """A peer's agent, its metadata, and its pool."""

    agent: str
    metadata: bytes
    pool: PoolMemory

    @classmethod
    def read(cls, descriptor: dict[str, Any], block_bytes: int, heads: range, version: str) -> "NixlAddress":
        """Return a peer's address from its descriptor. Raise TransferError when it is not usable. The library trusts
        what it is given, and damaged metadata ends its process: so it must have been made by the same `version`, and
        have the digest that the peer stated."""
        descriptor = part(descriptor, KIND)
        if descriptor.get("version") != version:
            raise TransferError(
                f"the peer has another version of NIXL than this worker's {version}: install the same for both"
            )
        agent = secret(descriptor, "agent", AGENT_BYTES).hex()
        metadata_hex = descriptor.get("metadata")
        if not isinstance(metadata_hex, str) or not 0 < len(metadata_hex) <= 2 * LARGEST_METADATA:
            raise TransferError("the peer's descriptor has no usable 'metadata'")
        metadata = secret(descriptor, "metadata", len(metadata_hex) // 2)
        if hashlib.sha256(metadata).digest() != secret(descriptor, "digest", DIGEST_BYTES):
            raise TransferError("the peer's NIXL metadata is damaged: its digest is another one")
        memory = descriptor.get("memory")
        if memory not in MEMORIES:
            raise TransferError("the peer's descriptor has no usable 'memory'")
        blocks, device = num_blocks(descriptor, block_bytes), whole(descriptor, "device")
        cells = address(descriptor, "cells", EPOCH_SLOTS * CELL_BYTES)
        pool = address(descriptor, "pool", blocks * block_bytes)
        return cls(agent, metadata, PoolMemory(cells, pool, memory, device, blocks, block_bytes, heads))

    def descriptor(self, version: str) -> dict[str, Any]:
        """Return the fields that `read` reads, for our own pool."""
        pool = self.pool
        return {
            "kind": KIND,
            "version": version,
            "agent": self.agent,
            "metadata": self.metadata.hex(),
            "digest": hashlib.sha256(self.metadata).hexdigest(),
            "memory": pool.memory,
            "device": pool.device,
            "cells": pool.cells.to_bytes(ADDRESS_BYTES, "big").hex(),
            "pool": pool.blocks.to_bytes(ADDRESS_BYTES, "big").hex(),
            "blocks": pool.num_blocks,
            "block_bytes": pool.block_bytes,
        }


def address(descriptor: dict[str, Any], name: str, size: int) -> int:
    """Return a field that is the address of `size` bytes."""
    pointer = int.from_bytes(secret(descriptor, name, ADDRESS_BYTES), "big")
    if not 0 < pointer < (1 << 63) - size:
        raise TransferError(f"the peer's descriptor has no usable {name!r}")
    return pointer
