# SPDX-License-Identifier: Apache-2.0
"""Tiles of a driver on the device of a follower, which waits for nothing but its own earlier ones."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.kv.block_copies import copy_blocks
from pontil.gpu_ops.products.batch_invariance import ANY_ROWS
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import rounds_of
from pontil.runtime.engine.device.link import Arrival, DeviceLink
from pontil.runtime.engine.device.step_buffer import COPIES_IN_FLIGHT, StepBuffer, StepSections
from pontil.runtime.engine.device.tile_forward import DeviceLimits, Shape, TileForward
from pontil.runtime.engine.device.tile_logits import TileLogits
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.engine.tiles.runner import TileRunner
from pontil.runtime.models.model import Model

# Words of a tile's inputs besides those that its limits bound: the rows of recorded logprobs.
SPARE_WORDS = 1 << 16


class DeviceFollower:
    """A rank that computes the tiles of its driver's DeviceRunner, of the same limits, and draws nothing. All ranks
    exchange the same shapes in the same order: their rows are padded alike."""

    def __init__(
        self, model: Model, storage: KVStorage, link: DeviceLink, limits: DeviceLimits, attention: AttentionBackend
    ) -> None:
        self.model, self.storage, self.link = model, storage, link
        # Tiles that the driver computes by its plain runner.
        self.plain = TileRunner(model, storage, ANY_ROWS)
        self.inputs = StepBuffer(link, limits.words + SPARE_WORDS)
        last = torch.zeros(limits.most_draws, dtype=torch.int32, device=link.device)
        self.layers = TileForward(model, storage, link, limits, last, attention)
        # A word behind each of the last copies, which arrives when the copy is over.
        self.over = last[:1]
        self.words = [link.host_words(1) for _ in range(COPIES_IN_FLIGHT)]
        self.ends: deque[Arrival] = deque()

    @torch.inference_mode()
    def record(self, shapes: Sequence[Shape]) -> None:
        """Record decode steps of some shapes, together with the other ranks."""
        self.layers.record(shapes, self.inputs.send)

    @torch.inference_mode()
    def follow(self, plan: TilePlan) -> None:
        if not plan.on_device:
            self.plain.follow(plan)
            return
        tile, sections = TileLogits(plan), StepSections()
        tile.write(self.layers, sections)
        self.send(sections)
        hidden = tile.hidden(self.layers)
        for _ in tile.recorded(self.model, hidden):
            pass
        if plan.drawn:
            tile.drawn(self.model, hidden)

    @torch.inference_mode()
    def take_accepted(self, counts: Sequence[int]) -> None:
        raise AssertionError("layers with states are computed on CPUs only")

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to) each, before the next tile."""
        sections, pool = StepSections(), self.storage.own
        rounds = [np.array(blocks, np.int64) for some in rounds_of(pairs) for blocks in zip(*some, strict=True)]
        if rounds:
            numbers = sections.add(rounds)
            self.send(sections)
            block_numbers = numbers()
            for sources, targets in zip(block_numbers[::2], block_numbers[1::2], strict=True):
                copy_blocks(pool, sources, pool, targets, len(sources))

    def send(self, sections: StepSections) -> None:
        """Copy sections to the device, from host memory that no earlier copy still reads."""
        if len(self.ends) == COPIES_IN_FLIGHT:
            self.ends.popleft().wait()
        sections.sent = self.inputs.send(sections.arrays)
        self.ends.append(self.link.fetch(self.over, self.words[self.inputs.copies % COPIES_IN_FLIGHT]))
