# SPDX-License-Identifier: Apache-2.0
"""One tile in a step on a device: what is written for it, started, and read back."""

import torch
from torch import Tensor

from pontil.gpu_ops.draws.sampling import DrawIds
from pontil.runtime.engine.device.draw_inputs import Asked, LogprobPlan, PlacedLogprobs
from pontil.runtime.engine.device.link import Words
from pontil.runtime.engine.device.results import Place, ResultBuffer
from pontil.runtime.engine.device.step_buffer import StepSections
from pontil.runtime.engine.device.tile_draws import TileDraws
from pontil.runtime.engine.device.tile_forward import TileForward
from pontil.runtime.engine.device.tile_logits import RECORDED_TOGETHER, TileLogits
from pontil.runtime.engine.runner.model_runner import completed, give_states, states_wanted
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Tile
from pontil.runtime.engine.sequences.streamed import FrameMaker
from pontil.runtime.engine.tiles.rows import TileRows
from pontil.runtime.models.hidden_states import HiddenStates
from pontil.runtime.models.model import Model


class TileStep:
    """A tile in a step: its logits, its draws, the logprobs of prompt tokens, and the states that other stages read of
    it. With a `maker` each sampled id is the first code of a frame."""

    def __init__(
        self,
        tile: Tile,
        rows: TileRows,
        vocab_size: int,
        draw_sizes: tuple[int, ...],
        draw: DrawIds,
        maker: FrameMaker | None,
    ) -> None:
        self.tile, self.rows, self.plan, self.maker = tile, rows, rows.plan, maker
        self.logits = TileLogits(rows.plan)
        self.draws = TileDraws(rows.drawing, vocab_size, draw_sizes, draw)
        self.recorded = [LogprobPlan(some) for some in recorded_of(rows)]
        self.recorded_made: list[list[Tensor]] = []
        self.recorded_places: list[PlacedLogprobs] = []
        self.states = states_wanted(tile)
        self.state_places: list[Place] = []
        self.drawn_states: Tensor | None = None

    def write(self, layers: TileForward, sections: StepSections) -> None:
        """Add the sections of this tile's layers to those of the step."""
        self.logits.write(layers, sections)
        self.recorded_sections = [sections.add(plan.sections) for plan in self.recorded]

    def compute(self, layers: TileForward, model: Model) -> Tensor:
        """Start the layers, up to the logits; return the hidden states of the plan's rows, which the next step may
        write."""
        hidden = self.logits.hidden(layers, self.states)
        prompt_logits = self.logits.recorded(model, hidden)
        for plan, (logits, rows), sections in zip(self.recorded, prompt_logits, self.recorded_sections, strict=True):
            self.recorded_made.append(plan.compute(logits, rows[:0], sections()))
        if self.draws.count:
            self.draws.take(self.logits.drawn(model, hidden))
            if self.maker is not None:
                self.drawn_states = torch.stack([hidden[place] for place in self.plan.drawn])
        return hidden

    def draw(self, results: ResultBuffer) -> None:
        """Start an attempt at the draws; the results of the layers go with theirs."""
        pairs = zip(self.recorded, self.recorded_made, strict=True)
        self.recorded_places = [PlacedLogprobs(plan, results.add(some)) for plan, some in pairs]
        if self.states is not None:
            self.state_places = results.add(received(self.states, self.tile.rows))
        self.draws.compute(results)

    def read(self, words: Words) -> list[Sampled]:
        """Return the sampled tokens, record the logprobs of prompts, and give states to those that read them."""
        recorded_rows = iter(self.rows.recorded)
        for placed_logprobs in self.recorded_places:
            for logprobs in placed_logprobs.read([], words):
                sequence, _ = next(recorded_rows)
                sequence.record.prompt_logprobs.append(logprobs)
        if self.states is not None:
            # The words are those of another step before a consumer has read them.
            embedding, hidden = (torch.from_numpy(place.read(words).copy()) for place in self.state_places)
            self.states.embedding, self.states.hidden = embedding, hidden
            give_states(self.tile, self.states)
        samples = self.draws.read(words)
        if self.maker is None or self.drawn_states is None:
            return samples
        return completed(self.maker, samples, self.rows.drawing, self.drawn_states)


def received(states: HiddenStates, rows: int) -> list[Tensor]:
    """Return the states of so many rows, before which no padding stands."""
    assert states.embedding is not None and states.hidden is not None
    return [states.embedding[:rows], states.hidden[:rows]]


def recorded_of(rows: TileRows) -> list[list[Asked]]:
    """The logprobs of prompt tokens, in parts of RECORDED_TOGETHER rows of logits."""
    specs = [
        Asked(place % RECORDED_TOGETHER, 0, sequence.prompt[position], sequence.params.prompt_logprobs or 0)
        for place, (sequence, position) in enumerate(rows.recorded)
    ]
    return [specs[at : at + RECORDED_TOGETHER] for at in range(0, len(specs), RECORDED_TOGETHER)]
