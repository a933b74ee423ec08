# SPDX-License-Identifier: Apache-2.0
"""One tile in a step on a device: what is written for it, started, and read back."""

from torch import Tensor

from pontil.runtime.engine.device.draw_inputs import Asked, LogprobPlan, PlacedLogprobs
from pontil.runtime.engine.device.link import Words
from pontil.runtime.engine.device.results import ResultBuffer
from pontil.runtime.engine.device.step_buffer import StepSections
from pontil.runtime.engine.device.tile_draws import TileDraws
from pontil.runtime.engine.device.tile_forward import TileForward
from pontil.runtime.engine.device.tile_logits import RECORDED_TOGETHER, TileLogits
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.tiles.rows import TileRows
from pontil.runtime.models.model import Model


class TileStep:
    """A tile in a step: its logits, its draws, and the logprobs of prompt tokens."""

    def __init__(self, rows: TileRows, vocab_size: int, draw_sizes: tuple[int, ...]) -> None:
        self.rows, self.plan = rows, rows.plan
        self.logits = TileLogits(rows.plan)
        self.draws = TileDraws(rows.drawing, vocab_size, draw_sizes)
        self.recorded = [LogprobPlan(some) for some in recorded_of(rows)]
        self.recorded_made: list[list[Tensor]] = []
        self.recorded_places: list[PlacedLogprobs] = []

    def write(self, layers: TileForward, sections: StepSections) -> None:
        """Add the sections of this tile's layers to those of the step."""
        self.logits.write(layers, sections)
        self.recorded_sections = [sections.add(plan.sections) for plan in self.recorded]

    def compute(self, layers: TileForward, model: Model) -> None:
        """Start the layers, up to the logits."""
        hidden = self.logits.hidden(layers)
        prompt_logits = self.logits.recorded(model, hidden)
        for plan, (logits, rows), sections in zip(self.recorded, prompt_logits, self.recorded_sections, strict=True):
            self.recorded_made.append(plan.compute(logits, rows[:0], sections()))
        if self.draws.count:
            self.draws.take(self.logits.drawn(model, hidden))

    def draw(self, results: ResultBuffer) -> None:
        """Start an attempt at the draws; the results of the layers go with theirs."""
        pairs = zip(self.recorded, self.recorded_made, strict=True)
        self.recorded_places = [PlacedLogprobs(plan, results.add(some)) for plan, some in pairs]
        self.draws.compute(results)

    def read(self, words: Words) -> list[Sampled]:
        """Return the sampled tokens, and record the logprobs of prompts."""
        recorded_rows = iter(self.rows.recorded)
        for placed_logprobs in self.recorded_places:
            for logprobs in placed_logprobs.read([], words):
                sequence, _ = next(recorded_rows)
                sequence.record.prompt_logprobs.append(logprobs)
        return self.draws.read(words)


def recorded_of(rows: TileRows) -> list[list[Asked]]:
    """The logprobs of prompt tokens, in parts of RECORDED_TOGETHER rows of logits."""
    specs = [
        Asked(place % RECORDED_TOGETHER, 0, sequence.prompt[position], sequence.params.prompt_logprobs or 0)
        for place, (sequence, position) in enumerate(rows.recorded)
    ]
    return [specs[at : at + RECORDED_TOGETHER] for at in range(0, len(specs), RECORDED_TOGETHER)]
