# SPDX-License-Identifier: Apache-2.0
"""The models that kernels compute, whole or divided, and what their ranks share."""

from dataclasses import replace

import pytest
import torch

from pontil.gpu_ops.collectives.shared_memory import exchange_bytes
from pontil.gpu_ops.kernels.layer import HeadShape
from pontil.gpu_ops.kernels.rank_group import HEADER_BYTES
from pontil.runtime.engine.batch import MIXED_ROWS
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.fused_block import MOST_ROWS, kernels_fit, shape_of, shared_bytes

CONFIG = ModelConfig("llama", 512, 192, 320, 2, 8, 2, 32, 1024, 1e-6, 1e4, True, "float32", (1,))


@pytest.mark.parametrize(
    "ranks, expected", [(1, HeadShape(8, 2, 32)), (2, HeadShape(4, 1, 32)), (4, HeadShape(2, 1, 32))]
)
def test_a_rank_has_its_share_of_heads_and_one_kv_head_at_least(ranks: int, expected: HeadShape) -> None:
    assert shape_of(CONFIG, ranks) == expected


def test_parts_are_whole_panels() -> None:
    assert all(kernels_fit(CONFIG, torch.bfloat16, ranks) for ranks in (1, 2, 4))
    # A quarter of 224 is 56.
    narrow = replace(CONFIG, hidden_size=224)
    assert kernels_fit(narrow, torch.bfloat16, 2) and not kernels_fit(narrow, torch.bfloat16, 4)
    narrow = replace(CONFIG, intermediate_size=224)
    assert kernels_fit(narrow, torch.bfloat16, 2) and not kernels_fit(narrow, torch.bfloat16, 4)


def test_the_shared_memory_holds_the_largest_tile() -> None:
    """Its two regions hold float32 rows of the widest product and the rows that are read behind them."""
    assert MOST_ROWS == MIXED_ROWS
    widest = 2 * (512 + 31) * 320 * 4
    assert shared_bytes(CONFIG) == exchange_bytes(320, MOST_ROWS) == HEADER_BYTES + widest
    assert shared_bytes(replace(CONFIG, num_heads=16)) > shared_bytes(CONFIG)
