# SPDX-License-Identifier: Apache-2.0
"""A runner whose results arrive one call later, as those of a device do."""

from dataclasses import replace

from torch import Tensor

from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.runner.model_runner import ModelRunner
from pontil.runtime.engine.runner.runner import Launched
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch, Tile
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.models.hidden_states import HiddenStates


class LateRunner(ModelRunner):
    """Computes at once, but lets nobody know. `referred` counts rows whose ids were not known on the host."""

    last: tuple[int, ...] = ()
    referred = late = 0

    def launch(self, batch: Batch) -> Launched:
        sampled = self.run(batch)
        owners = [one.sequence for one in sampled]
        self.last = tuple(one.tokens[-1] if one.tokens else 0 for one in sampled)
        places = {one: place for place, one in enumerate(owners) if owners.count(one) == 1}
        arrived: list[list[Sampled]] = [sampled]
        return Launched(arrived.pop, places)

    def forward(self, tile: Tile, plan: TilePlan, states: HiddenStates | None) -> Tensor:
        known = [self.last[-1 - token] if token < 0 else token for token in plan.ids]
        self.referred += sum(token < 0 for token in plan.ids)
        return super().forward(tile, replace(plan, ids=known), states)


def make_late(engine: Engine) -> LateRunner:
    """Have an engine's results arrive late."""
    plain = engine.runner
    assert isinstance(plain, ModelRunner)
    made = LateRunner(plain.model, plain.storage, classes=plain.tiles.classes)
    engine.runner = made
    return made
