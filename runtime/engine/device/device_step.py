# SPDX-License-Identifier: Apache-2.0
"""A step on a device: its tiles, whose layers were started, and its draws, which may wait."""

from collections.abc import Set
from dataclasses import dataclass, field

import torch

from pontil.runtime.engine.device.link import Arrival
from pontil.runtime.engine.device.results import ResultBuffer
from pontil.runtime.engine.device.step_buffer import StepBuffer, StepSections
from pontil.runtime.engine.device.tile_step import TileStep
from pontil.runtime.engine.runner.memory_errors import compute_what_fits
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.sequence import Sequence, SequenceState


@dataclass(slots=True, eq=False)
class DeviceStep:
    """A batch whose layers are started. If any of its draws has to wait, all do: they have one copy of numbers there,
    and one of results back. So the device computes layers while the host accepts the tokens of the step before, and
    makes masks. `ends` are those of sequences that memory did not suffice for."""

    batch: Batch
    tiles: list[TileStep]
    inputs: StepBuffer
    results: ResultBuffer
    ends: list[Sampled] = field(default_factory=list)
    arrival: Arrival | None = None

    @property
    def waits(self) -> bool:
        return any(tile.draws.wait for tile in self.tiles)

    @property
    def places(self) -> dict[Sequence, int]:
        """The places of the ids of sequences that draw one each."""
        return {sequence: place for tile in self.tiles for sequence, place in tile.draws.places.items()}

    def write_draws(self, sections: StepSections, left_out: Set[Sequence] = frozenset()) -> None:
        for tile in self.tiles:
            tile.draws.write(sections, left_out)

    def start_draws(self) -> Arrival:
        """Start the draws, whose sections are on the device, and the way back of all results."""
        self.results.clear(sum(tile.draws.count for tile in self.tiles))
        for tile in self.tiles:
            tile.draw(self.results)
        arrival = self.results.fetch()
        for tile in self.tiles:
            tile.draws.release()
        return arrival

    @torch.inference_mode()
    def draw(self) -> None:
        """Start the draws that waited. The KV of the step is there whatever becomes of them: a request for whose draw
        memory does not suffice ends, and is computed no further."""
        if self.arrival is None:
            ended_sequences = {
                span.sequence for span in self.batch.spans if span.sequence.state is SequenceState.FINISHED
            }
            self.arrival, ends = compute_what_fits(
                self.batch.without(ended_sequences), self.attempt, self.inputs.link.settle
            )
            self.ends += ends

    def attempt(self, some: Batch) -> Arrival:
        """Make an attempt at the draws of some of the sequences. The others have nothing but their places."""
        sequences = {span.sequence for span in some.spans}
        sections = StepSections()
        self.write_draws(sections, {span.sequence for span in self.batch.spans} - sequences)
        sections.sent = self.inputs.send(sections.arrays)
        return self.start_draws()

    def collect(self) -> list[Sampled]:
        """Wait for the results."""
        assert self.arrival is not None, "the tokens of the step before are accepted"
        words = self.arrival.wait()
        return [*(sample for tile in self.tiles for sample in tile.read(words)), *self.ends]
