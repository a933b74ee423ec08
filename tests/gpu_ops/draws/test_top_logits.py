# SPDX-License-Identifier: Apache-2.0
"""The highest logits are those of a full sort, on every path, whatever a row holds."""

import math
import struct
from itertools import product
from typing import Any

import kernels
import pytest
import torch
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.gpu_ops.draws.top_logits import top_logits, top_there
from pontil.gpu_ops.kernels.draws import top_logits as top_logits_by
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.weights.matrix import GROUP, pack

VALUES = [0.0, -0.0, 1.5, -2.25, 3e38, math.inf, -math.inf, math.nan, 1e-40]


@pytest.fixture(scope="module", params=kernels.NAMES)
def library(request: pytest.FixtureRequest) -> KernelLibrary:
    return kernels.opened(request.param)


def sorted_whole(row: list[float], count: int) -> list[tuple[int, int]]:
    """Return the pairs by a sort of all ids."""
    clean = [-math.inf if math.isnan(logit) else logit + 0.0 for logit in row]
    ids = sorted(range(len(row)), key=lambda one: (-clean[one], one))[:count]
    pairs = [(one, *struct.unpack("<i", struct.pack("<f", clean[one]))) for one in ids]
    return pairs + [(-1, -1)] * (count - len(ids))


@settings(max_examples=examples(60, 400), deadline=None)
@given(st.sampled_from([1, 5, 63, 64, 65, 200, 700]), st.integers(1, 9), st.randoms(use_true_random=False))
def test_as_a_sort_of_all(vocabulary: int, count: int, random: Any) -> None:
    few = random.random() < 0.5

    def draw() -> float:
        return float(random.choice(VALUES) if few else random.gauss(0, 3))

    logits = torch.tensor([[draw() for _ in range(vocabulary)] for _ in range(3)], dtype=torch.float32)
    expected = [sorted_whole(row, count) for row in logits.tolist()]
    assert [[tuple(pair) for pair in row] for row in top_logits(logits, count).tolist()] == expected
    assert [[tuple(pair) for pair in row] for row in top_there(logits, count).tolist()] == expected


@settings(max_examples=examples(12, 400), deadline=None)
@given(st.sampled_from([1, 5, 64, 65, 200]), st.integers(0, 9), st.randoms(use_true_random=False))
def test_the_kernels_find_the_same(library: KernelLibrary, vocabulary: int, count: int, random: Any) -> None:
    kind, values = random.choice(["few", "rising", "any"]), [float(random.gauss(0, 3)) for _ in range(3 * vocabulary)]
    if kind == "rising":
        values.sort()
    for place in range(len(values)):
        if kind == "few" or random.random() < 0.02:
            values[place] = random.choice(VALUES)
    logits = torch.tensor(values, dtype=torch.float32).view(3, vocabulary)
    expected = [sorted_whole(row, count) for row in logits.tolist()]
    for padded, groups in product((0, 32), (None, highest_of_groups(logits))):
        beside = torch.nn.functional.pad(logits, (0, padded), value=1e30)[:, :vocabulary]
        found = top_logits_by(library, beside, [2, 0], count, groups).tolist()
        assert [[tuple(pair) for pair in row] for row in found] == [expected[2], expected[0]]
    assert top_logits_by(library, logits, [], count).shape == (0, count, 2)


def highest_of_groups(logits: torch.Tensor) -> torch.Tensor:
    """Return those of GROUP ids that follow each other, as the head makes them."""
    clean = torch.nn.functional.pad(logits.nan_to_num(-math.inf, math.inf, -math.inf), (0, -logits.shape[1] % GROUP))
    clean[:, logits.shape[1] :] = -math.inf
    return clean.view(len(logits), -1, GROUP).amax(-1)


@pytest.mark.parametrize("vocabulary", [5, 32, 97, 800])
def test_the_head_knows_the_highest_logits_of_groups(library: KernelLibrary, vocabulary: int) -> None:
    """Also where a row has NaN, of which no logit may be hidden."""
    weight = torch.randn(vocabulary, 64, generator=torch.Generator().manual_seed(vocabulary))
    weight[vocabulary // 2] = math.nan
    logits, ranked = library.head(pack(weight), torch.ones(3, 64), None, 1e-6)
    assert ranked.groups is not None and logits.isnan().any()
    assert torch.equal(ranked.groups, highest_of_groups(logits))
    by_groups = top_logits_by(library, logits, range(3), 8, ranked.groups)
    assert torch.equal(by_groups, top_logits(logits, 8))
