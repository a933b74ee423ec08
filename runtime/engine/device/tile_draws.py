# SPDX-License-Identifier: Apache-2.0
"""The draws of one tile in a step on a device: planned before its layers start, started now or later, and read back."""

from collections import Counter
from collections.abc import Sequence, Set

from torch import Tensor

from pontil.gpu_ops.draws.sampling import DrawIds
from pontil.gpu_ops.parameters.draws import DeviceDraws
from pontil.runtime.engine.device.buckets import bucket_of
from pontil.runtime.engine.device.draw_inputs import (
    LogprobPlan,
    PlacedLogprobs,
    TopLogitsPlan,
    asked_of,
    draw_sections,
    kinds_of,
)
from pontil.runtime.engine.device.link import Words
from pontil.runtime.engine.device.results import ResultBuffer
from pontil.runtime.engine.device.step_buffer import StepSections
from pontil.runtime.engine.sampling.logit_entries import needs_unknown_tokens
from pontil.runtime.engine.sampling.sampler import Draw, Sampled, plan_draws, with_top_logits
from pontil.runtime.engine.sequences.batch import Span
from pontil.runtime.engine.sequences.sequence import Sequence as EngineSequence
from pontil.runtime.engine.sequences.token_logprobs import TokenLogprobs


class TileDraws:
    """The draws that follow some spans, and the logprobs that are asked for of them. They are `count` with padding, and
    the first has the place `first` among the results.

    All that follows from the number of a sequence's tokens is fixed when they are planned, and masks and penalties when
    they are written: then all earlier tokens are known. Draws of sequences that are left out are made from their bare
    logits, and thrown away; without any others there are none.
    """

    def __init__(self, spans: Sequence[Span], vocab_size: int, draw_sizes: tuple[int, ...], draw: DrawIds) -> None:
        self.draw = draw
        self.plan = plan_draws([span.sequence for span in spans], [span.drafts for span in spans], vocab_size)
        draws = self.plan.draws
        self.count, self.first = bucket_of(len(draws), draw_sizes) if draws else 0, 0
        self.wait = any(needs_unknown_tokens(sequence) for sequence in self.plan.sequences)
        self.numbers = draw_sections(draws, self.count)
        self.logits: Tensor | None = None
        self.edited: Tensor | None = None
        self.drawn: Tensor | None = None
        self.logprob_places: PlacedLogprobs | None = None

    @property
    def places(self) -> dict[EngineSequence, int]:
        """The places of the ids of sequences that draw one each."""
        draws, sequences = self.plan.draws, self.plan.sequences
        if len(draws) == len(sequences):
            return dict(zip(sequences, range(self.first, self.first + len(draws)), strict=True))
        owners = Counter([draw.sequence for draw in draws])
        return {draw.sequence: self.first + at for at, draw in enumerate(draws) if owners[draw.sequence] == 1}

    def write(self, sections: StepSections, left_out: Set[EngineSequence]) -> None:
        """Add the sections of an attempt at these draws."""
        self.left_out = left_out
        self.edits, self.dead = self.plan.edits(left_out)
        self.asked = [entry for entry in asked_of(self.plan.draws) if entry[0].sequence not in left_out]
        self.logprobs = LogprobPlan([spec for _, spec in self.asked])
        self.number_sections = sections.add(self.numbers)
        self.edit_sections = sections.add([tensor.numpy() for tensor in self.edits.tensors])
        self.logprob_sections = sections.add(self.logprobs.sections if self.asked else [])
        self.top_logits = TopLogitsPlan([draw for draw in self.plan.draws if draw.sequence not in left_out])
        self.top_sections = sections.add(self.top_logits.sections)

    def take(self, logits: Tensor) -> None:
        """Take the logits, float32 [rows, vocabulary], and the memory for the edited ones, if there will be any."""
        self.logits = logits
        if self.plan.edits_logits:
            self.edited = logits.new_empty(logits.shape)

    def compute(self, results: ResultBuffer) -> None:
        """Start an attempt at the draws. It destroys nothing that another one would read."""
        if self.logits is None or all(sequence in self.left_out for sequence in self.plan.sequences):
            return
        self.drawn = results.ids[self.first : self.first + self.count]
        logits, draws = self.edited_logits(self.logits), DeviceDraws(*self.number_sections())
        self.draw(logits, draws, self.drawn, kinds_of(self.plan.draws))
        if self.asked:
            logprobs = self.logprobs.compute(self.logits, self.drawn, self.logprob_sections())
            self.logprob_places = PlacedLogprobs(self.logprobs, results.add(logprobs))
        self.top_logits.compute(self.logits, self.top_sections(), results)

    def edited_logits(self, logits: Tensor) -> Tensor:
        sections = iter(self.edit_sections())
        edits = self.edits.moved(lambda _: next(sections))
        if self.edited is None or not edits:
            return logits
        self.edited.copy_(logits)
        edits.make(self.edited)
        return self.edited

    def release(self) -> None:
        """Give the memory of the logits back: the draws are started."""
        self.logits = self.edited = None

    def read(self, words: Words) -> list[Sampled]:
        """Return the sampled tokens of all that were not left out."""
        if self.drawn is None:
            return []
        draws = self.plan.draws
        tokens = words[self.first : self.first + len(draws)].tolist()
        logprobs: dict[Draw, TokenLogprobs] = {}
        if self.logprob_places is not None:
            token_logprobs = self.logprob_places.read(tokens, words)
            logprobs = {draw: entry for (draw, _), entry in zip(self.asked, token_logprobs, strict=True)}
        shown = with_top_logits(logprobs, self.top_logits.read(words))
        by_draw = dict(zip(draws, tokens, strict=True))
        samples = self.plan.results(draws, self.drawn[: len(draws)], by_draw, self.dead, lambda _: shown)
        return [sample for sample in samples if sample.sequence not in self.left_out] if self.left_out else samples
