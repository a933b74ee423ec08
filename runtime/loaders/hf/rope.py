# SPDX-License-Identifier: Apache-2.0
"""Rotary positions in a Hugging Face configuration, in its older and its newer form. No torch here.

Newer files keep everything in `rope_parameters`, older ones only the scaling in `rope_scaling` and the bases beside it.
Gemma 3 has two sets, in newer files under the names of the kinds of layers.
"""

from __future__ import annotations

import math
from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import integer, number, section, short
from pontil.runtime.models.config import RopeScaling

FULL, SLIDING = "full_attention", "sliding_attention"
MOST_MAGNITUDE = 100.0


def rope(data: dict[str, Any]) -> dict[str, Any]:
    """The fields for layers that see every position; in most models for all layers."""
    found = section(data, "rope_parameters") or section(data, "rope_scaling")
    return section(found, FULL) if FULL in found or SLIDING in found else found


def local_rope(data: dict[str, Any]) -> dict[str, Any]:
    """The fields for layers with a sliding window, if they differ."""
    return section(section(data, "rope_parameters"), SLIDING)


def theta(data: dict[str, Any]) -> float:
    return number(rope(data), "rope_theta", number(data, "rope_theta", 10000.0))


def local_theta(data: dict[str, Any]) -> float:
    """Gemma 3's base for layers with a window. Raises ModelError when these are scaled."""
    found = local_rope(data)
    refuse_other_kinds(found, ("default",))
    return number(found, "rope_theta", number(data, "rope_local_base_freq", 10000.0))


def kind(found: dict[str, Any]) -> Any:
    return found.get("rope_type") or found.get("type") or "default"


def refuse_other_kinds(found: dict[str, Any], known: tuple[str, ...]) -> None:
    if kind(found) not in known:
        raise ModelError(
            f"the model scales its rotary positions ({short(kind(found))}): this version runs {', '.join(known)} only"
        )


def rope_scaling(data: dict[str, Any]) -> RopeScaling | None:
    """The scaling. Raises ModelError for an unknown kind, or one that lacks a number."""
    found = rope(data)
    refuse_other_kinds(found, ("default", "linear", "llama3", "yarn"))
    if kind(found) == "linear":
        return RopeScaling("linear", factor=number(found, "factor"))
    if kind(found) == "llama3":
        return RopeScaling(
            "llama3",
            factor=number(found, "factor"),
            original_max_len=original_max_len(found, data),
            low_freq_factor=number(found, "low_freq_factor"),
            high_freq_factor=number(found, "high_freq_factor"),
        )
    return yarn(found, data) if kind(found) == "yarn" else None


def rotated_dim(data: dict[str, Any], head_dim: int, partial: bool) -> int | None:
    """The number of a head's dimensions that are rotated, or None for all. Raises ModelError for a part of them, unless
    the architecture rotates a `partial` head."""
    factors = [
        data.get("partial_rotary_factor"),
        *(found.get("partial_rotary_factor") for found in (rope(data), local_rope(data))),
    ]
    stated = [
        number({"partial_rotary_factor": factor}, "partial_rotary_factor") for factor in factors if factor is not None
    ]
    if all(one == 1 for one in stated):
        return None
    if not partial or not 0 < stated[-1] <= 1:
        raise ModelError(
            f"the model has partial_rotary_factor = {short(min(stated))}: this version turns "
            f"{'a part of each head' if partial else 'whole heads of it'} only"
        )
    return int(head_dim * stated[-1])


def original_max_len(found: dict[str, Any], data: dict[str, Any]) -> int:
    return integer(found, "original_max_position_embeddings", integer(data, "max_position_embeddings"))


def yarn(found: dict[str, Any], data: dict[str, Any]) -> RopeScaling:
    factor = number(found, "factor")
    return RopeScaling(
        "yarn",
        factor=factor,
        original_max_len=original_max_len(found, data),
        beta_fast=number(found, "beta_fast", 32.0),
        beta_slow=number(found, "beta_slow", 1.0),
        attention_factor=number(found, "attention_factor", attention_factor(found, factor)),
        truncate=found.get("truncate", True) is not False,
    )


def attention_factor(found: dict[str, Any], factor: float) -> float:
    """The factor by which YaRN strengthens attention over longer texts (Peng et al., 2023, section 3.4)."""
    above, below = magnitude(found, "mscale"), magnitude(found, "mscale_all_dim")
    if above and below:
        return yarn_magnitude(factor, above) / yarn_magnitude(factor, below)
    return yarn_magnitude(factor)


def magnitude(found: dict[str, Any], key: str) -> float:
    """A weight of the logarithm of YaRN's factor."""
    value = number(found, key, 0.0)
    if not 0.0 <= value <= MOST_MAGNITUDE:
        raise ModelError(f"the rotary positions' {key} is {value:g}: it must be from 0 to {MOST_MAGNITUDE:g}")
    return value


def score_factor(data: dict[str, Any]) -> float:
    """The factor of both queries and keys that DeepSeek's models have beside the one of cosines and sines."""
    found = rope(data)
    below = magnitude(found, "mscale_all_dim")
    return yarn_magnitude(number(found, "factor", 1.0), below) if below and kind(found) != "default" else 1.0


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
