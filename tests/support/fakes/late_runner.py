# SPDX-License-Identifier: Apache-2.0
"""A runner whose results arrive one call later, as those of a device do."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pontil.gpu_ops.parameters.draws import RankedRows
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.runner.model_runner import ModelRunner
from pontil.runtime.engine.runner.runner import Launched, nothing
from pontil.runtime.engine.sampling.logit_entries import needs_unknown_tokens
from pontil.runtime.engine.sampling.sampler import Sampled, plan_draws, sample_planned
from pontil.runtime.engine.sequences.batch import Batch, Span, Tile
from pontil.runtime.engine.sequences.sequence import Sequence as EngineSequence
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.models.hidden_states import HiddenStates


class LateRunner(ModelRunner):
    """Computes at once, but lets nobody know, and draws when it may. `referred` counts rows whose ids were not known on
    the host, and `waited` the steps whose draws waited."""

    last: tuple[int, ...] = ()
    referred = late = waited = 0

    def launch(self, batch: Batch) -> Launched:
        self.drawing: list[EngineSequence] = []
        self.planned: list[Callable[[], list[Sampled]]] = []
        assert not self.run(batch)
        waits = any(needs_unknown_tokens(one) for one in self.drawing)
        self.waited += waits
        owners = [one for one in self.drawing for _ in one.choices]
        places = {one: place for place, one in enumerate(owners) if owners.count(one) == 1}
        arrived: list[list[Sampled]] = []
        draw = partial(self.draw, self.planned, arrived)
        if not waits:
            draw()
        return Launched(arrived.pop, places, draw=draw if waits else nothing, late=True)

    @torch.inference_mode()
    def draw(self, planned: Sequence[Callable[[], list[Sampled]]], arrived: list[list[Sampled]]) -> None:
        sampled = [one for make in planned for one in make()]
        self.last = tuple(one.tokens[-1] if one.tokens else 0 for one in sampled)
        arrived.append(sampled)

    def sample(self, spans: Sequence[Span], logits: Tensor, ranked: RankedRows | None) -> list[Sampled]:
        sequences = [span.sequence for span in spans]
        plan = plan_draws(sequences, [span.drafts for span in spans], logits.shape[1])
        self.drawing += sequences
        self.planned.append(partial(sample_planned, plan, logits, ranked, self.model.kernels))
        return []

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
