# SPDX-License-Identifier: Apache-2.0
"""Runs batches on a device without waiting for it: all numbers of a step go there in one copy, and ids and logprobs
come back in one."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.draws.sampling import DrawIds, draw, prepare
from pontil.gpu_ops.kv.block_copies import copy_blocks
from pontil.gpu_ops.products.batch_invariance import ANY_ROWS
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.buckets import buckets
from pontil.runtime.engine.device.device_step import DeviceStep
from pontil.runtime.engine.device.link import DeviceLink
from pontil.runtime.engine.device.results import ResultBuffer
from pontil.runtime.engine.device.step_buffer import StepBuffer, StepSections
from pontil.runtime.engine.device.tile_forward import DeviceLimits, Shape, TileForward
from pontil.runtime.engine.device.tile_step import TileStep
from pontil.runtime.engine.runner.memory_errors import compute_what_fits, left_out_of
from pontil.runtime.engine.runner.model_runner import NONE, Followers, ModelRunner
from pontil.runtime.engine.runner.runner import Launched
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch, Tile
from pontil.runtime.engine.sequences.sequence import Sequence as EngineSequence
from pontil.runtime.engine.sequences.streamed import FrameMaker
from pontil.runtime.engine.tiles.rows import TileRows, rows_of
from pontil.runtime.models.model import Model

Round = list[tuple[int, int]]


def rounds_of(copies: Iterable[tuple[int, int]]) -> list[Round]:
    """Divide copies (from, to), in their order, into rounds in which no block is read and written, so that each round
    can be made at once. A block that was reassigned after it was to be copied is read in an earlier round than written:
    what a copy reads was written in an earlier step."""
    rounds: list[Round] = []
    read_blocks: set[int] = set()
    for source, target in copies:
        if not rounds or target in read_blocks:
            rounds.append([])
            read_blocks.clear()
        rounds[-1].append((source, target))
        read_blocks.add(source)
    return rounds


def handed_over(batch: Batch) -> list[EngineSequence]:
    """Return the sequences of a batch of whose prompt, which is handed over, the end is computed."""
    ends = [span for span in batch.spans if span.start + span.count == len(span.sequence.prompt)]
    return [span.sequence for span in ends if span.sequence.hands_over]


# Words of a step that are kept for masks and whatever else has no bound, and of its logprobs.
SPARE_WORDS, RESULT_WORDS = 1 << 20, 1 << 16


class DeviceRunner(ModelRunner):
    """A runner for a model whose layers compute on a device. The other ranks of a worker are DeviceFollowers of the
    same limits. Its `draw` may be another one that draws alike."""

    forward_type: ClassVar[type[TileForward]] = TileForward

    def __init__(
        self,
        model: Model,
        storage: KVStorage,
        link: DeviceLink,
        limits: DeviceLimits,
        attention: AttentionBackend,
        followers: Followers = NONE,
        frame_maker: FrameMaker | None = None,
    ) -> None:
        super().__init__(model, storage, followers, frame_maker, ANY_ROWS)
        self.limits, self.link = limits, link
        most = limits.most_draws
        self.draw_sizes = buckets(most)
        self.draw: DrawIds = draw
        self.inputs = StepBuffer(link, limits.words + SPARE_WORDS)
        self.results = ResultBuffer(link, most, most + RESULT_WORDS)
        self.layers = self.forward_type(model, storage, link, limits, self.results.last, attention)

    def run(self, batch: Batch) -> list[Sampled]:
        return self.launch(batch).collect()

    @torch.inference_mode()
    def launch(self, batch: Batch) -> Launched:
        if not batch.spans and not batch.copies:
            return Launched(list)
        self.results.begin()
        rounds = rounds_of(batch.copies)
        if not self.may_begin_anew:
            if batch.copies:
                self.followers.copy(batch.copies)
            step = self.start(batch, rounds)
            return Launched(step.collect, step.places, frozenset(), step.draw, late=True, mark=self.mark_of(batch))
        # Copies of an attempt may still read host memory that the next one writes.
        step, ends = compute_what_fits(batch, lambda some: self.start(some, rounds), self.link.settle)
        step.ends += ends
        return Launched(step.collect, step.places, left_out_of(ends), step.draw, late=True, mark=self.mark_of(batch))

    def mark_of(self, batch: Batch) -> Any:
        """Return the moment behind a step that ends prompts which are handed over. States that go with a handoff are
        read behind everything that was started; so are the blocks of other ranks, which get the order to publish them
        behind the plan of the next step."""
        is_alone = self.keeps_states or not handed_over(batch)
        return None if is_alone else self.storage.mark()

    def start(self, batch: Batch, rounds: list[Round]) -> DeviceStep:
        """Start an attempt at a step. It writes what another attempt would write, too, and nothing that one would read:
        the copies that it started are taken out of `rounds`."""
        tiles = self.planned(batch)
        step, sections = DeviceStep(batch, tiles, self.inputs, self.results), StepSections()
        first = 0
        # A tile of generated positions stands first, so that its sections are where recorded steps read them.
        for tile in sorted(tiles, key=lambda tile: not tile.plan.generated):
            tile.write(self.layers, sections)
            tile.draws.first = first
            first += tile.draws.count
        if not step.waits:
            step.write_draws(sections)
        copies = [sections.add([np.array(blocks, np.int64) for blocks in zip(*some, strict=True)]) for some in rounds]
        sections.sent = self.inputs.send(sections.arrays)
        for copy_sections in copies:
            self.copy_blocks(*copy_sections())
            del rounds[0]
        # A block is sent whole: zeros stand behind the prompt before the step's mark.
        for sequence in handed_over(batch):
            filled = len(sequence.prompt) % self.storage.layout.block_size
            if filled:
                self.storage.clear_tail(sequence.blocks[-1], filled)
        for tile in tiles:
            self.followers.run(tile.plan)
            self.keep(tile.rows, tile.compute(self.layers, self.model))
        if not step.waits:
            step.arrival = step.start_draws()
        return step

    @torch.inference_mode()
    def record(self, shapes: Sequence[Shape]) -> None:
        """Record decode steps of some shapes, together with the other ranks, and compile what draws start."""
        self.layers.record(shapes, self.inputs.send)
        prepare(self.model.config.vocab_size, self.link.device)

    def planned(self, batch: Batch) -> list[TileStep]:
        tiles = batch.tiles(self.limits.prompt, self.limits.generated)
        vocabulary = self.model.config.vocab_size
        return [
            TileStep(tile, self.rows(tile), vocabulary, self.draw_sizes, self.draw, self.frame_maker) for tile in tiles
        ]

    def rows(self, tile: Tile) -> TileRows:
        return rows_of(tile, self.keeps_states, on_device=True)

    def keep(self, rows: TileRows, hidden: Tensor) -> None:
        """Give sequences the states that they keep, in memory of their own: the next step may write to `hidden`."""
        for span, places in rows.kept:
            self.keep_states(span, hidden[places[0] : places[-1] + 1].clone())

    def copy_blocks(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole blocks, of which none is a source and a target."""
        pool = self.storage.own
        copy_blocks(pool, sources, pool, targets, len(sources))
