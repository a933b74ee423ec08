# SPDX-License-Identifier: Apache-2.0
"""The facts about the models of a plan, as JSON values, found in a process that has loaded torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pontil.runtime.cache.layout import choose_kv_dtype
from pontil.runtime.cache.storage import TORCH_DTYPES
from pontil.runtime.errors import PontilError
from pontil.runtime.inspection.capacity import capacity, context_bytes, count_weights
from pontil.runtime.inspection.step_speeds import measure_speeds
from pontil.runtime.inspection.trials import (
    PartTrials,
    TriedDecoder,
    shortened,
    try_adapters,
    try_decoder,
    try_demand,
    try_draft,
    try_text_model,
)
from pontil.runtime.loaders.builtin import local_model, source_of, unknown_model
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.layers.fused_block import kernels_fit
from pontil.runtime.probe.footprint import CPU, MemoryDemand, dtype_of
from pontil.runtime.probe.other_workers import OtherWorker

ModelFacts = dict[str, Any]
# Positions behind which the speed of a longer stream is told.
CONTEXT = 4096
TEMPLATE_TRIAL = ({"role": "user", "content": "a question"},)


def inspect_models(plan: Mapping[str, Any], cache: Path) -> list[ModelFacts]:
    """Return the facts of each model. `plan` is the configuration of the child that finds the models of a launch, with
    the `cores` that one stream may have."""
    found = [
        inspect_decoder(name, MemoryDemand(**demand), plan["adapters"].get(name, {}), cache, plan["cores"])
        for name, demand in plan.get("demands", {}).items()
    ]
    others = [OtherWorker(**other) for other in plan.get("others", ())]
    kinds = dict.fromkeys((other.model, other.scores) for other in others if other.stage is None)
    return found + [inspect_text_model(name, scores, cache) for name, scores in kinds]


def inspect_decoder(
    name: str, demand: MemoryDemand, adapters: Mapping[str, str], cache: Path, cores: Sequence[int]
) -> ModelFacts:
    place = local_model(name, cache)
    if place is None:
        return not_here(name)
    trials = PartTrials()
    decoder = try_decoder(place, trials)
    facts: ModelFacts = {"name": name, "faults": trials.faults}
    if decoder.template is not None:
        facts["template"] = template_facts(decoder)
    if decoder.config is None:
        return facts
    config = shortened(decoder.config, demand)
    try_demand(place, decoder.config, demand, trials)
    try_adapters(config, adapters, trials)
    if demand.speculative_model is not None:
        facts["unfetched draft"] = try_draft(place, demand.speculative_model, cache, trials)
    if not trials.faults:
        trials.of("memory", lambda: facts.update(figures(place, config, decoder, demand, (cache, cores))))
    return facts


def not_here(name: str) -> ModelFacts:
    if source_of(name) is not None:
        return {"name": name, "faults": {}, "unfetched": True}
    return {"name": name, "faults": {"model": unknown_model(name)}}


def inspect_text_model(name: str, scores: bool, cache: Path) -> ModelFacts:
    place = local_model(name, cache)
    if place is None:
        return not_here(name)
    trials = PartTrials()
    try_text_model(place, scores, trials)
    return {"name": name, "faults": trials.faults, "scores": scores}


def template_facts(decoder: TriedDecoder) -> ModelFacts:
    template = decoder.template
    assert template is not None
    return {
        "is_there": template.source is not None,
        "failure": template.failure if template.template is None else None,
        "writes": template.template is not None and template.writes(TEMPLATE_TRIAL),
        "tools": template.template is not None and template.knows_tools,
    }


def figures(
    path: Path, config: ModelConfig, decoder: TriedDecoder, demand: MemoryDemand, machine: tuple[Path, Sequence[int]]
) -> ModelFacts:
    """Return what a model is, takes and reaches. Raises ModelError."""
    cache, cores = machine
    dtype = dtype_of(config, demand)
    fits = demand.has_kernels and kernels_fit(config, TORCH_DTYPES[dtype])
    taken, on_host = capacity(path, config, demand, fits), CPU in demand.workers[-1]
    total, used = count_weights(config)
    facts: ModelFacts = {
        "architecture": config.architecture, "layers": config.num_layers, "numbers": total, "used": used,
        "vocabulary": config.vocab_size, "context": config.max_model_len, "ends": list(config.eos_token_ids),
        "unpacked": list(decoder.checkpoint.unpacked_types) if decoder.checkpoint else [],
        "taken": asdict(taken), "workers": len(demand.workers),
    }  # fmt: skip
    if on_host and cores and decoder.checkpoint is not None:
        cells = choose_kv_dtype(demand.kv_cache_dtype, dtype)
        try:
            facts["speeds"] = asdict(measure_speeds(decoder.checkpoint, taken, cells, cores, cache, fits))
        except (PontilError, RuntimeError, MemoryError) as error:
            facts["unmeasured"] = str(error)
    behind = min(CONTEXT, config.max_model_len)
    return facts | {"behind": behind, "context_bytes": context_bytes(config, taken.token_bytes, behind)}
