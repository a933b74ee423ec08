# SPDX-License-Identifier: Apache-2.0
"""The models that kernels compute, whole or divided, and what their ranks share."""

from dataclasses import replace

import torch

from pontil.gpu_ops.collectives.shared_memory import exchange_bytes
from pontil.gpu_ops.kernels.rank_group import HEADER_BYTES
from pontil.runtime.engine.sequences.batch import MIXED_ROWS
from pontil.runtime.models.config import LatentConfig, ModelConfig
from pontil.runtime.models.layers.fused_block import MOST_ROWS, kernels_fit, shared_bytes

CONFIG = ModelConfig("llama", 512, 192, 320, 2, 8, 2, 32, 1024, 1e-6, 1e4, True, "float32", (1,))


def test_parts_are_whole_panels() -> None:
    assert all(kernels_fit(CONFIG, torch.bfloat16, ranks) for ranks in (1, 2, 4))
    # A quarter of 224 is 56.
    narrow = replace(CONFIG, hidden_size=224)
    assert kernels_fit(narrow, torch.bfloat16, 2) and not kernels_fit(narrow, torch.bfloat16, 4)
    narrow = replace(CONFIG, intermediate_size=224)
    assert kernels_fit(narrow, torch.bfloat16, 2) and not kernels_fit(narrow, torch.bfloat16, 4)


def test_every_size_of_latent_attention_is_whole_panels() -> None:
    latent = LatentConfig(rank=32, query_rank=48, key_dim=16, rotary_dim=16, value_dim=48)
    one = replace(CONFIG, mixer=latent, head_dim=latent.stored_dim, num_kv_heads=1)
    assert kernels_fit(one, torch.float32) and kernels_fit(one, torch.bfloat16, 4)
    assert kernels_fit(replace(one, mixer=replace(latent, query_rank=None)), torch.float32)
    for part in ("rank", "query_rank", "key_dim", "rotary_dim", "value_dim"):
        assert not kernels_fit(replace(one, mixer=replace(latent, **{part: 40})), torch.float32)


def test_the_shared_memory_holds_the_largest_tile() -> None:
    """Its two regions hold float32 rows of the widest product and the rows that are read behind them."""
    assert MOST_ROWS == MIXED_ROWS
    widest = 2 * (512 + 31) * 320 * 4
    assert shared_bytes(CONFIG) == exchange_bytes(320, MOST_ROWS) == HEADER_BYTES + widest
    assert shared_bytes(replace(CONFIG, num_heads=16)) > shared_bytes(CONFIG)
    assert shared_bytes(CONFIG, 4) == exchange_bytes(4 * CONFIG.hidden_size, MOST_ROWS)
    latent = LatentConfig(rank=256, query_rank=None, key_dim=32, rotary_dim=32, value_dim=96)
    assert shared_bytes(replace(CONFIG, mixer=latent, head_dim=288)) == exchange_bytes(8 * 96, MOST_ROWS)
