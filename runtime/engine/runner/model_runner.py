# SPDX-License-Identifier: Apache-2.0
"""Runs a batch through the model and samples from its logits. Takes no scheduling decision."""

from collections.abc import Sequence as Sequential
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from pontil.gpu_ops.parameters.draws import RankedRows
from pontil.gpu_ops.products.batch_invariance import BatchInvariance
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.runner.memory_errors import compute_what_fits, left_out_of
from pontil.runtime.engine.runner.runner import Launched
from pontil.runtime.engine.sampling.logprobs import logprobs_of
from pontil.runtime.engine.sampling.sampler import Sampled, sample_rows
from pontil.runtime.engine.sequences.batch import Batch, Span, Tile
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.sequences.streamed import FrameMaker
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.engine.tiles.rows import rows_of
from pontil.runtime.engine.tiles.runner import HEAD_ROWS, TileRunner
from pontil.runtime.models.hidden_states import HiddenStates
from pontil.runtime.models.model import Model


class Followers(Protocol):
    """The other ranks of a worker, which compute every tile together with this process."""

    @property
    def none(self) -> bool:
        """Return whether there are no other ranks."""

    def copy(self, pairs: Sequential[tuple[int, int]]) -> None:
        """Have whole blocks copied, (from, to) each, before the next tile."""

    def run(self, plan: TilePlan) -> None:
        """Have a tile computed. Called before this process computes it."""

    def take_accepted(self, counts: Sequential[int]) -> None:
        """Have the first so many positions of each span of the last tile that verified guesses taken into the states of
        recurrent layers, before anything else."""


class NoFollowers:
    """The other ranks of a worker of one process."""

    none = True

    def copy(self, pairs: Sequential[tuple[int, int]]) -> None:
        return

    def run(self, plan: TilePlan) -> None:
        return

    def take_accepted(self, counts: Sequential[int]) -> None:
        return


NONE = NoFollowers()


class ModelRunner:
    """Turns tiles of sequences into plans, has them computed, and samples. With a `frame_maker` each sampled id is the
    first code of a frame."""

    def __init__(
        self,
        model: Model,
        storage: KVStorage,
        followers: Followers = NONE,
        frame_maker: FrameMaker | None = None,
        classes: BatchInvariance | None = None,
    ) -> None:
        self.tiles, self.storage, self.followers = TileRunner(model, storage, classes), storage, followers
        self.frame_maker, self.keeps_states = frame_maker, False
        # Of the last step, where layers have states: those that verified guesses.
        self.verifying: list[Span] = []

    @property
    def model(self) -> Model:
        return self.tiles.model

    @property
    def answers_are_found(self) -> bool:
        return self.model.kernels is not None or not self.tiles.keeps_bits

    @property
    def may_begin_anew(self) -> bool:
        """Return whether a step for which memory does not suffice is attempted again without its largest request. Other
        ranks would wait for the rest of one that is begun anew, and states would take its rows in twice."""
        return self.storage.states is None and self.followers.none and self.model.communicator.size == 1

    def beside(self, storage: KVStorage) -> "ModelRunner":
        return ModelRunner(self.model, storage)

    def launch(self, batch: Batch) -> Launched:
        """Begin to compute a batch. Here all is done at once."""
        samples = self.run(batch)
        return Launched(lambda: samples, left_out=left_out_of(samples), accepted=self.take_accepted)

    def take_accepted(self) -> None:
        """Bring the states of recurrent layers to the last position of each sequence that is computed now: those behind
        it were guesses that were wrong, or followed the end of an answer."""
        spans, self.verifying = self.verifying, []
        if spans:
            counts = [span.sequence.computed - span.start for span in spans]
            self.followers.take_accepted(counts)
            self.tiles.take_accepted(counts)

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Sampled]:
        """Compute every tile; return the sampled tokens of each sequence whose known tokens are all computed."""
        copies = list(batch.copies)
        if copies:
            self.followers.copy(copies)
        if not self.may_begin_anew:
            return self.compute(batch, copies)
        samples, ends = compute_what_fits(batch, lambda some: self.compute(some, copies))
        return [*samples, *ends]

    def compute(self, batch: Batch, copies: list[tuple[int, int]]) -> list[Sampled]:
        """Make the copies that were not made yet, then compute every tile. A second time has the same results: it
        writes the same KV."""
        if copies:
            self.storage.copy(copies)
            copies.clear()
        tiles = batch.tiles() if self.model.kernels is None else batch.mixed_tiles()
        return [sample for tile in tiles for sample in self.run_tile(tile)]

    def run_tile(self, tile: Tile) -> list[Sampled]:
        rows = rows_of(tile, self.keeps_states)
        plan = rows.plan
        self.followers.run(plan)
        if self.storage.states is not None:
            self.verifying += [span for span in tile.spans if span.drafts]
        states = states_wanted(tile)
        hidden = self.forward(tile, plan, states)
        if states is not None:
            give_states(tile, states)
        for span, places in rows.kept:
            self.keep_states(span, hidden[self.tiles.tensor(places)])
        self.record_prompt_logprobs(plan, hidden, rows.recorded)
        if not plan.drawn:
            return []
        logits, ranked = self.tiles.drawn_logits(plan, hidden)
        samples = self.sample(rows.drawing, logits, ranked)
        if self.frame_maker is None:
            return samples
        return completed(self.frame_maker, samples, rows.drawing, hidden[self.tiles.tensor(plan.drawn)])

    def forward(self, tile: Tile, plan: TilePlan, states: HiddenStates | None) -> Tensor:
        """Final hidden states of the plan's rows. `states` receives those of all the tile's rows."""
        return self.tiles.forward(plan, states)

    def sample(self, spans: Sequential[Span], logits: Tensor, ranked: RankedRows | None) -> list[Sampled]:
        """Sample the tokens that follow the spans and their drafts, from a row of logits for each."""
        drafts = [span.drafts for span in spans]
        return sample_rows(logits, [span.sequence for span in spans], drafts, ranked, self.model.kernels)

    def keep_states(self, span: Span, hidden: Tensor) -> None:
        """Give a sequence the states of a span's last positions."""
        first, sequence = span.start + span.count - len(hidden), span.sequence
        sequence.drafting.record(first, list(self.model.normed(hidden)))

    def record_prompt_logprobs(self, plan: TilePlan, hidden: Tensor, targets: list[tuple[Sequence, int]]) -> None:
        """Record the logprobs of prompt tokens for sequences that asked for them. `targets`: the position of the token
        whose logprob each recorded row gives. Logits of at most HEAD_ROWS positions exist at a time."""
        for part, logits in enumerate(self.tiles.prompt_logits(plan, hidden)):
            sequences, positions = zip(*targets[part * HEAD_ROWS : (part + 1) * HEAD_ROWS], strict=True)
            tokens = [sequence.prompt[position] for sequence, position in zip(sequences, positions, strict=True)]
            counts = [sequence.params.prompt_logprobs for sequence in sequences]
            rows = torch.arange(len(logits), device=logits.device)
            for sequence, logprobs in zip(
                sequences, logprobs_of(logits, rows, self.tiles.tensor(tokens), counts), strict=True
            ):
                sequence.record.prompt_logprobs.append(logprobs)


def states_wanted(tile: Tile) -> HiddenStates | None:
    """Return a receiver of hidden states if any sequence of the tile wants them. All of a model want the same."""
    receivers = (states for span in tile.spans if (states := span.sequence.streams.states) is not None)
    first = next(receivers, None)
    return None if first is None else HiddenStates(first.layers)


def give_states(tile: Tile, states: HiddenStates) -> None:
    """Give each sequence that wants them the states of its positions. Such sequences have no drafts."""
    assert states.embedding is not None and states.hidden is not None
    row = 0
    for span in tile.spans:
        if span.sequence.streams.states is not None:
            rows = slice(row, row + span.count)
            span.sequence.streams.states.take(span.start, states.embedding[rows].cpu(), states.hidden[rows].cpu())
        row += span.count


def completed(maker: FrameMaker, samples: list[Sampled], drawing: Sequential[Span], hidden: Tensor) -> list[Sampled]:
    """Return the sampled ids with their whole frames. `hidden` has a row for each span that draws, as there are no
    drafts. The place of an id follows from its span: later ones may have been drawn meanwhile."""
    places = {span.sequence: place for place, span in enumerate(drawing)}
    ends = [span.start + span.count for span in drawing]
    drawn = [(sample.sequence, token) for sample in samples for token in sample.tokens]
    if not drawn:
        return samples
    rows = [(one.params.seed, ends[places[one]], token, one.params.greedy) for one, token in drawn]
    frames = iter(maker.frames(rows, torch.stack([hidden[places[one]] for one, _ in drawn])))
    return [replace(sample, frames=[next(frames) for _ in sample.tokens]) for sample in samples]
