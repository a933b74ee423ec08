# SPDX-License-Identifier: Apache-2.0
"""The host as a device that computes at once: steps of devices with real numbers."""

from collections.abc import Callable
from typing import Any

import torch
from tiny import layout_of
from torch import Tensor

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.kv.attention import (
    KEY_CHUNK,
    KEY_STRIP,
    GeneratedAttention,
    PagedAttention,
    PromptAttention,
    PromptSpan,
)
from pontil.gpu_ops.kv.device_tile import DeviceTile
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.rotary import HeadTurn
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import Arrival, HostWords, RecordedStep, Words
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.drafts.step_drafts import StepDrafts
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.models.model import Model


class HostArrival:
    """Words that stay where they were fetched to until something else is."""

    def __init__(self, words: Words) -> None:
        self.words = words

    def wait(self) -> Words:
        return self.words


class HostLink:
    """Counts copies, and computes recorded steps again from the same memory."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.sent = self.fetched = self.replayed = self.captures = self.settled = 0

    def host_words(self, count: int) -> HostWords:
        made = torch.zeros(count, dtype=torch.int32)
        return HostWords(made.numpy(), made)

    def send(self, source: HostWords, target: Tensor) -> None:
        self.sent += 1
        target.copy_(source.tensor[: len(target)])

    def fetch(self, source: Tensor, target: HostWords) -> Arrival:
        self.fetched += 1
        target.tensor[: len(source)].copy_(source)
        return HostArrival(target.words[: len(source)])

    def settle(self) -> None:
        self.settled += 1

    def capture(self, run: Callable[[], Tensor], pool: Any) -> RecordedStep:
        result = run()
        self.captures += 1

        def replay() -> None:
            self.replayed += 1
            result.copy_(run())

        return RecordedStep(replay, lambda: None, result, pool)

    def reserved(self) -> int:
        return 1000 * self.captures


def attend(pool: Tensor, tile: DeviceTile) -> PagedAttention:
    """The CPU's attention for a tile as devices have it."""
    block_size = pool.shape[4]
    used = tile.slots >= 0
    rows = int(used.sum())
    assert bool(used[:rows].all())
    slots = tile.slots[:rows].long()
    blocks, offsets = slots // block_size, slots % block_size
    if tile.query_tiles is not None:
        spans = [
            PromptSpan(first, start, count, in_chunks(tile.tables[owner], start + count, KEY_CHUNK, block_size))
            for first, start, count, owner in tile.query_tiles.tolist()
            if count
        ]
        return PromptAttention(pool, blocks, offsets, spans)
    if rows == 0:
        return nothing
    assert tile.owners is not None and tile.lengths is not None
    lengths = tile.lengths[:rows].long()
    longest = int(lengths.max())
    tables = torch.stack([in_chunks(tile.tables[one], longest, KEY_STRIP, block_size) for one in tile.owners[:rows]])
    return GeneratedAttention(pool, blocks, offsets, tables, lengths)


class HostBackend(AttentionBackend):
    def attention(self, pool: Tensor, tile: DeviceTile) -> PagedAttention:
        return attend(pool, tile)


def nothing(layer: LayerAttention, q: Tensor, k: Tensor, v: Tensor | None, turn: HeadTurn | None = None) -> Tensor:
    """The attention of padding alone."""
    return torch.zeros_like(q)[..., : layer.value_dim]


def in_chunks(table: Tensor, length: int, width: int, block_size: int) -> Tensor:
    chunks, per_chunk = -(-length // width), width // block_size
    made = torch.zeros(chunks * per_chunk, dtype=torch.int64)
    needed = min(-(-length // block_size), len(table))
    made[:needed] = table[:needed]
    return made.view(chunks, per_chunk)


def device_engine(
    model: Model, *, blocks: int = 200, block_size: int = 16, seats: int = 40, budget: int = 256, drafts: int = 0,
    link: HostLink | None = None, backend: AttentionBackend | None = None, cells: str = "auto",
) -> tuple[Engine, DeviceRunner]:  # fmt: skip
    layout = layout_of(model, block_size, cells)
    storage = KVStorage(layout, blocks, model.device)
    scheduler = Scheduler(BlockPool(blocks), layout, seats, StepBudget(budget), drafts=StepDrafts(drafts))
    limits = DeviceLimits(seats + 32, budget, layout.blocks_for(model.config.max_model_len) * layout.kv_pages)
    runner = DeviceRunner(model, storage, link or HostLink(), limits, backend or HostBackend())
    return Engine(runner, scheduler), runner
