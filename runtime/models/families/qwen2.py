# SPDX-License-Identifier: Apache-2.0
"""Qwen2 and Qwen2.5 (Yang et al., 2024): Llama with biases on the projections to queries, keys and values."""

from pontil.runtime.models.families.llama import Llama


class Qwen2(Llama):
    """Differs by `config.qkv_bias`, and by windows in the upper layers of some models."""
