# SPDX-License-Identifier: Apache-2.0
"""The layers of one tile in a step on a device, up to its logits: written and started by every rank alike."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from pontil.runtime.engine.device.step_buffer import StepSections
from pontil.runtime.engine.device.tile_forward import TileForward, drawn_whole, padded
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.models.hidden_states import HiddenStates
from pontil.runtime.models.model import Model

# Rows of logits of prompt tokens that are computed together.
RECORDED_TOGETHER = 64


class TileLogits:
    """The logits of a tile. The sections of one that `leads` are where those of recorded steps are."""

    def __init__(self, plan: TilePlan) -> None:
        self.plan, self.leads = plan, False

    def write(self, layers: TileForward, sections: StepSections) -> None:
        """Add the sections of the layers to those of the step, the ones of fixed sizes first."""
        self.leads = not sections.arrays
        self.fixed = sections.add(layers.fixed_sections(self.plan))
        self.free = sections.add(layers.free_sections(self.plan))
        self.given = sections.add(layers.given_sections(self.plan))
        some = self.plan.drawn and not drawn_whole(self.plan)
        self.drawn_rows = sections.add([padded(self.plan.drawn, layers.places)] if some else [])
        prompt_rows = self.plan.recorded
        parts = [prompt_rows[at : at + RECORDED_TOGETHER] for at in range(0, len(prompt_rows), RECORDED_TOGETHER)]
        self.recorded_rows = sections.add([np.array(part, np.int64) for part in parts])

    def hidden(self, layers: TileForward, states: HiddenStates | None = None) -> Tensor:
        """Start the layers. `states` receives those of all rows, padding included."""
        fixed = self.fixed()
        given = layers.given(self.plan, fixed[0], self.given(), states)
        return layers.hidden(self.plan, fixed, self.free(), self.leads, given)

    def recorded(self, model: Model, hidden: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the logits of the recorded rows, in parts of RECORDED_TOGETHER, and the places of these rows."""
        for rows in self.recorded_rows():
            yield model.logits(hidden.index_select(0, rows)), rows

    def drawn(self, model: Model, hidden: Tensor) -> Tensor:
        """Return the logits of the drawn rows, those of padding last. There is one."""
        for rows in self.drawn_rows():
            hidden = hidden.index_select(0, rows)
        return model.logits(hidden)
