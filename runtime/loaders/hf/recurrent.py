# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in a Hugging Face configuration. No torch here."""

from __future__ import annotations

import math
from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import integer, layer_count, short
from pontil.runtime.models.architectures import Architecture
from pontil.runtime.models.config import RecurrentConfig

FULL, RECURRENT = "full_attention", "linear_attention"
# Words of older files with Mamba layers.
OLDER = {"attention": FULL, "mamba": RECURRENT}


def recurrent_config(architecture: Architecture, data: dict[str, Any]) -> RecurrentConfig | None:
    """Raises ModelError for a missing size, or layers of a kind that is not known."""
    if architecture.mixer == "mamba2":
        return mamba_config(data)
    if architecture.mixer not in ("gated_delta", "joined_gated_delta"):
        return None
    return RecurrentConfig(
        kind=architecture.mixer,
        layers=recurrent_layers(data),
        key_heads=integer(data, "linear_num_key_heads"),
        value_heads=integer(data, "linear_num_value_heads"),
        key_dim=integer(data, "linear_key_head_dim"),
        value_dim=integer(data, "linear_value_head_dim"),
        width=integer(data, "linear_conv_kernel_dim"),
    )


def mamba_config(data: dict[str, Any]) -> RecurrentConfig:
    limit = data.get("time_step_limit")
    if limit not in (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}]):
        raise ModelError(f"the model has time_step_limit = {short(limit)}: this version runs steps of any length only")
    heads, inner = integer(data, "mamba_n_heads"), integer(data, "mamba_expand", 2) * integer(data, "hidden_size")
    return RecurrentConfig(
        kind="mamba2",
        layers=mamba_layers(data),
        key_heads=integer(data, "mamba_n_groups"),
        value_heads=heads,
        key_dim=integer(data, "mamba_d_state"),
        value_dim=inner // max(heads, 1),
        width=integer(data, "mamba_d_conv"),
    )


def mamba_layers(data: dict[str, Any]) -> tuple[int, ...]:
    """The layers with a state: all but those that are listed as having attention, or those of that kind."""
    listed, kinds = data.get("attn_layer_indices"), data.get("layer_types")
    if listed is None and isinstance(kinds, list):
        return recurrent_layers(data | {"layer_types": [OLDER.get(str(kind), kind) for kind in kinds]})
    if listed is None:
        return recurrent_layers(data)
    if not isinstance(listed, list) or not all(type(layer) is int for layer in listed):
        raise ModelError(f"config.json needs a list of layers as attn_layer_indices, not {short(listed)}")
    return tuple(layer for layer in range(layer_count(data)) if layer not in listed)


def recurrent_layers(data: dict[str, Any]) -> tuple[int, ...]:
    """The layers with a state: listed ones, or all but the last of every so many."""
    layers, kinds = layer_count(data), data.get("layer_types")
    if kinds is None:
        interval = max(integer(data, "full_attention_interval"), 1)
        return tuple(layer for layer in range(layers) if (layer + 1) % interval)
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (FULL, RECURRENT) for kind in kinds):
        raise ModelError(f"config.json needs as layer_types a list of {layers} times {FULL} or {RECURRENT}")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == RECURRENT)
