# SPDX-License-Identifier: Apache-2.0
"""Qwen2 and Qwen2.5 (Yang et al., 2024): Llama with biases on the projections to queries, keys and values."""

from pontil.runtime.models.llama import Llama


class Qwen2(Llama):
    """`config.qkv_bias` is the difference, and windows in the upper layers of some models."""
