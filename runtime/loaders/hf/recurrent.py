# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in a Hugging Face configuration. No torch here."""

from __future__ import annotations

from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import integer, layer_count
from pontil.runtime.models.architectures import Architecture
from pontil.runtime.models.config import RecurrentConfig

FULL, RECURRENT = "full_attention", "linear_attention"


def recurrent_config(architecture: Architecture, data: dict[str, Any]) -> RecurrentConfig | None:
    """Raises ModelError for a missing size, or layers of a kind that is not known."""
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


def recurrent_layers(data: dict[str, Any]) -> tuple[int, ...]:
    """The layers with a state: listed ones, or all but the last of every so many."""
    layers, kinds = layer_count(data), data.get("layer_types")
    if kinds is None:
        interval = max(integer(data, "full_attention_interval"), 1)
        return tuple(layer for layer in range(layers) if (layer + 1) % interval)
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (FULL, RECURRENT) for kind in kinds):
        raise ModelError(f"config.json needs as layer_types a list of {layers} times {FULL} or {RECURRENT}")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == RECURRENT)
