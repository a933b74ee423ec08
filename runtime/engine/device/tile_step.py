# SPDX-License-Identifier: Apache-2.0
"""One tile in a step on a device: what is written for it, started, and read back."""

from collections import Counter, abc
from collections.abc import Callable

import numpy as np
from torch import Tensor

from pontil.gpu_ops.draws.sampling import draw
from pontil.gpu_ops.parameters.draws import DeviceDraws
from pontil.runtime.engine.device.buckets import bucket_of
from pontil.runtime.engine.device.draw_inputs import Asked, LogprobPlan, PlacedLogprobs, asked_of, draw_sections
from pontil.runtime.engine.device.link import Words
from pontil.runtime.engine.device.results import ResultBuffer
from pontil.runtime.engine.device.step_buffer import Array
from pontil.runtime.engine.device.tile_forward import TileForward, drawn_whole, padded
from pontil.runtime.engine.sampling.sampler import Draw, Sampled, plan_draws
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.sequences.token_logprobs import TokenLogprobs
from pontil.runtime.engine.tiles.rows import TileRows
from pontil.runtime.models.model import Model

# Rows of logits of prompt tokens that are computed together.
RECORDED_TOGETHER = 64


class StepSections:
    """The sections of a step, and after `send` their copies on the device."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.sent: list[Tensor] = []

    def add(self, arrays: abc.Sequence[Array]) -> Callable[[], list[Tensor]]:
        """Add sections; return what returns them as they are on the device."""
        here = slice(len(self.arrays), len(self.arrays) + len(arrays))
        self.arrays += arrays
        return lambda: self.sent[here]


class TileStep:
    """A tile in a step: what is drawn and asked for, and where that went. Its draws are `count` with padding, and the
    first of them has the place `first` among the results. The sections of one that `leads` are where those of recorded
    steps are."""

    def __init__(self, rows: TileRows, vocab_size: int, draw_sizes: tuple[int, ...]) -> None:
        self.rows, self.plan = rows, rows.plan
        spans = rows.drawing
        self.draws = plan_draws([span.sequence for span in spans], [span.drafts for span in spans], vocab_size)
        self.count = bucket_of(len(self.draws.draws), draw_sizes) if self.draws.draws else 0
        self.first, self.leads = 0, False
        self.asked = asked_of(self.draws.draws)
        self.logprobs = LogprobPlan([one for _, one in self.asked])
        self.recorded = [LogprobPlan(some) for some in recorded_of(rows)]
        self.logprob_places: PlacedLogprobs | None = None
        self.recorded_places: list[PlacedLogprobs] = []
        self.drawn: Tensor | None = None

    @property
    def places(self) -> dict[Sequence, int]:
        """The places of the ids of sequences that draw one each."""
        owners = Counter(draw.sequence for draw in self.draws.draws)
        return {one.sequence: self.first + at for at, one in enumerate(self.draws.draws) if owners[one.sequence] == 1}

    def write(self, layers: TileForward, sections: StepSections, first: int) -> None:
        """Add this tile's sections to those of the step, the ones of fixed sizes before all others."""
        self.first, self.leads = first, not sections.arrays
        self.fixed = sections.add(layers.fixed_sections(self.plan))
        self.draw_sections = sections.add(draw_sections(self.draws.draws, self.count))
        self.free = sections.add(layers.free_sections(self.plan))
        whole = drawn_whole(self.plan)
        places = [] if whole or not self.count else [padded(self.plan.drawn, layers.places)]
        self.drawn_rows = sections.add(places)
        parts = [
            self.plan.recorded[at : at + RECORDED_TOGETHER]
            for at in range(0, len(self.plan.recorded), RECORDED_TOGETHER)
        ]
        self.recorded_rows = sections.add([np.array(part, np.int64) for part in parts])
        self.edit_sections = sections.add([tensor.numpy() for tensor in self.draws.edits.tensors])
        self.logprob_sections = sections.add(self.logprobs.sections if self.asked else [])
        self.recorded_sections = [sections.add(one.sections) for one in self.recorded]

    def compute(self, layers: TileForward, model: Model, results: ResultBuffer) -> None:
        hidden = layers.hidden(self.plan, self.fixed(), self.free(), self.leads)
        for plan, rows, sections in zip(self.recorded, self.recorded_rows(), self.recorded_sections, strict=True):
            made = plan.compute(model.logits(hidden.index_select(0, rows)), rows[:0], sections())
            self.recorded_places.append(PlacedLogprobs(plan, results.add(made)))
        if not self.count:
            return
        for rows in self.drawn_rows():
            hidden = hidden.index_select(0, rows)
        logits = model.logits(hidden)
        self.drawn = results.ids[self.first : self.first + self.count]
        edits = iter(self.edit_sections())
        edited = self.draws.edits.moved(lambda _: next(edits)).apply(logits)
        draw(edited, DeviceDraws(*self.draw_sections()), self.drawn)
        if self.asked:
            made = self.logprobs.compute(logits, self.drawn, self.logprob_sections())
            self.logprob_places = PlacedLogprobs(self.logprobs, results.add(made))

    def read(self, words: Words) -> list[Sampled]:
        """Return the sampled tokens, and record the logprobs of prompts."""
        recorded = iter(self.rows.recorded)
        for placed in self.recorded_places:
            for made in placed.read([], words):
                sequence, _ = next(recorded)
                sequence.record.prompt_logprobs.append(made)
        if self.drawn is None:
            return []
        draws = self.draws.draws
        tokens = words[self.first : self.first + len(draws)].tolist()
        logprobs: dict[Draw, TokenLogprobs] = {}
        if self.logprob_places is not None:
            found = self.logprob_places.read(tokens, words)
            logprobs = {draw: one for (draw, _), one in zip(self.asked, found, strict=True)}
        by_draw = dict(zip(draws, tokens, strict=True))
        return self.draws.results(
            draws, self.drawn[: len(draws)], by_draw, lambda asked: {one: logprobs[one] for one in asked}
        )


def recorded_of(rows: TileRows) -> list[list[Asked]]:
    """The logprobs of prompt tokens, in parts of RECORDED_TOGETHER rows of logits."""
    found = [
        Asked(place % RECORDED_TOGETHER, 0, one.prompt[position], one.params.prompt_logprobs or 0)
        for place, (one, position) in enumerate(rows.recorded)
    ]
    return [found[at : at + RECORDED_TOGETHER] for at in range(0, len(found), RECORDED_TOGETHER)]
