# SPDX-License-Identifier: Apache-2.0
"""Qwen3's mixtures of experts (Yang et al., 2025): Qwen3 with experts in the place of most or all MLPs."""

from pontil.runtime.models.families.qwen3 import Qwen3
from pontil.runtime.models.families.sparse_llama import SparseLlama


class Qwen3Moe(SparseLlama, Qwen3):
    """Qwen3's attention."""
