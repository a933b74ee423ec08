# SPDX-License-Identifier: Apache-2.0
"""The sizes of latent attention in a Hugging Face configuration. No torch here."""

from __future__ import annotations

from typing import Any

from pontil.runtime.loaders.facts.json_fields import integer
from pontil.runtime.models.config import LatentConfig


def latent_config(data: dict[str, Any]) -> LatentConfig:
    """Raises ModelError for a missing size."""
    return LatentConfig(
        rank=integer(data, "kv_lora_rank"),
        query_rank=None if data.get("q_lora_rank") is None else integer(data, "q_lora_rank"),
        key_dim=integer(data, "qk_nope_head_dim"),
        rotary_dim=integer(data, "qk_rope_head_dim"),
        value_dim=integer(data, "v_head_dim"),
    )
