# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts in a Hugging Face configuration: one reader for the names that different models have for the
same thing. The defaults of an architecture's row tell the models apart. No torch here."""

from __future__ import annotations

from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import integer, layer_count, number, short
from pontil.runtime.models.architectures import Architecture
from pontil.runtime.models.config import ExpertConfig, RoutingConfig, SharedExpertConfig

# Newer files have another name than older ones of the same model.
COUNTS = ("n_routed_experts", "num_experts", "num_local_experts")
# The size of an expert of all rows that has no gate.
UNGATED = "shared_intermediate_size"
# Choices by scores alone, and by the best groups.
METHODS = ("greedy", "group_limited_greedy", "noaux_tc")


def expert_config(architecture: Architecture, data: dict[str, Any]) -> ExpertConfig | None:
    """None for a model with the expert of all rows alone. Raises ModelError for a missing field, or a way to choose
    experts that is not known."""
    count = integer(data, next((name for name in COUNTS if data.get(name) is not None), COUNTS[-1]))
    if count == 0 and integer(data, UNGATED, 0):
        return None
    size = integer(data, architecture.expert_size)
    return ExpertConfig(
        count=count,
        per_token=integer(data, "num_experts_per_tok"),
        intermediate_size=size,
        normalize=bool(data.get("norm_topk_prob", False)),
        dense_layers=dense_layers(data),
        shared=shared_expert(data, size),
        routing=routing_config(data),
        clamp=clamp(data),
    )


def shared_expert(data: dict[str, Any], size: int) -> SharedExpertConfig | None:
    """The expert of all rows: several of the others' size in one, or one with a size and a gate of its own."""
    own = integer(data, "shared_expert_intermediate_size", 0)
    if own:
        return SharedExpertConfig("shared_expert", own, gated=True)
    plain = integer(data, UNGATED, 0)
    if plain:
        return SharedExpertConfig("shared_experts", plain)
    count = integer(data, "n_shared_experts", 0)
    return SharedExpertConfig("shared_experts", count * size) if count else None


def clamp(data: dict[str, Any]) -> tuple[float, float] | None:
    if data.get("swiglu_limit") is None:
        return None
    return number(data, "swiglu_alpha"), number(data, "swiglu_limit")


def dense_layers(data: dict[str, Any]) -> tuple[int, ...]:
    """The layers with one MLP: listed ones, the first ones, and those between every so many layers with experts."""
    layers, listed = layer_count(data), data.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(type(layer) is int for layer in listed):
        raise ModelError(f"config.json needs a list of layers as mlp_only_layers, not {short(listed)}")
    step, first = integer(data, "decoder_sparse_step", 1), integer(data, "first_k_dense_replace", 0)
    frequency, dense = max(integer(data, "moe_layer_freq", 1), 1), set(listed)
    return tuple(
        layer
        for layer in range(layers)
        if layer in dense or (layer + 1) % max(step, 1) or layer < first or layer % frequency
    )


def routing_config(data: dict[str, Any]) -> RoutingConfig:
    scores, method = data.get("scoring_func", "softmax"), data.get("topk_method", "greedy")
    if scores not in ("softmax", "sigmoid"):
        raise ModelError(f"the model rates experts by {short(scores)}: this version runs softmax and sigmoid only")
    if method not in METHODS:
        raise ModelError(f"the model chooses experts by {short(method)}: this version runs {', '.join(METHODS)} only")
    grouped = method != "greedy"
    return RoutingConfig(
        scores=scores,
        bias=method == "noaux_tc",
        product_bias=bool(data.get("router_bias")),
        groups=integer(data, "n_group", 1) if grouped else 1,
        kept_groups=integer(data, "topk_group", 1) if grouped else 1,
        group_best=2 if method == "noaux_tc" else 1,
        factor=number(data, "routed_scaling_factor", 1.0),
    )
