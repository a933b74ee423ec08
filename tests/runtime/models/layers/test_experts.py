# SPDX-License-Identifier: Apache-2.0
"""Batch-invariance of experts: a row's result does not depend on the rows beside it."""

from collections.abc import Iterator
from itertools import chain

import kernels
import pytest
import torch
from torch import Tensor

from pontil.gpu_ops.kernels.layer import Norms
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.products.batch_invariance import GENERATED_ROWS
from pontil.runtime.models.config import ExpertConfig, SharedExpertConfig
from pontil.runtime.models.layers.experts import Experts
from pontil.runtime.models.weights import Packing, Weights

# With so many inputs, oneDNN computes a single row differently from several.
HIDDEN, INNER, COUNT = 2048, 64, 6
SHARED_INNER = 96
GATED, UNGATED = (SharedExpertConfig("shared_expert", SHARED_INNER, gated) for gated in (True, False))


def tensors() -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    yield "mlp.gate.weight", torch.randn(COUNT, HIDDEN, generator=generator)
    for number in range(COUNT):
        for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))):
            yield f"mlp.experts.{number}.{name}_proj.weight", torch.randn(shape, generator=generator) / 45


def shared_tensors(gated: bool) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    for name, shape in (("gate", (SHARED_INNER, HIDDEN)), ("up", (SHARED_INNER, HIDDEN)), ("down", (HIDDEN, 96))):
        yield f"mlp.shared_expert.{name}_proj.weight", torch.randn(shape, generator=generator) / 45
    if gated:
        yield "mlp.shared_expert_gate.weight", torch.randn(1, HIDDEN, generator=generator) / 45


def build(
    dtype: torch.dtype,
    normalize: bool = True,
    shared: SharedExpertConfig | None = None,
    kernels: KernelLibrary | None = None,
) -> Experts:
    more = [] if shared is None else shared_tensors(shared.gated)
    weights = Weights(chain(tensors(), more), torch.device("cpu"), dtype, Packing.of(kernels))
    experts = Experts(ExpertConfig(COUNT, 3, INNER, normalize, shared=shared), HIDDEN, "mlp.", weights)
    weights.finish()
    return experts


@pytest.mark.parametrize("normalize", [True, False])
def test_computes_the_weighted_sum_of_the_best_experts(normalize: bool) -> None:
    weights, x = dict(tensors()), torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(4))
    expected = []
    for row in x:
        ratings = (weights["mlp.gate.weight"] @ row).softmax(0)
        best = ratings.argsort(descending=True)[:3]
        share = ratings[best] / (ratings[best].sum() if normalize else 1)
        made = []
        for number in best.tolist():
            gate, up, down = (weights[f"mlp.experts.{number}.{name}_proj.weight"] for name in ("gate", "up", "down"))
            made.append(down @ (torch.nn.functional.silu(gate @ row) * (up @ row)))
        expected.append((torch.stack(made) * share.unsqueeze(1)).sum(0))
    torch.testing.assert_close(build(torch.float32, normalize)(x), torch.stack(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_of_a_row_in_any_company(dtype: torch.dtype) -> None:
    experts = build(dtype)
    x = torch.randn(6 * GENERATED_ROWS, HIDDEN, generator=torch.Generator().manual_seed(5)).to(dtype)
    _, chosen = experts.route(x)
    # More rows than one tile holds for an expert that all rows chose.
    chosen[:, 0] = 0
    together = experts.results(x, chosen)
    for start, end in ((0, 1), (7, 8), (9, 11), (20, 60), (60, 192)):
        assert torch.equal(experts.results(x[start:end], chosen[start:end]), together[start:end])
    shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(6))
    assert torch.equal(experts.results(x[shuffled], chosen[shuffled]), together[shuffled])


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    return kernels.opened()


def by_kernels(experts: Experts, x: Tensor) -> Tensor:
    result = torch.zeros_like(x)
    experts.half(Norms(0.0))(x, result)
    return result


@pytest.mark.parametrize("shared", [GATED, UNGATED], ids=["gated", "ungated"])
@pytest.mark.parametrize("with_kernels", [True, False], ids=["kernels", "torch"])
def test_a_shared_expert_is_added_to_every_row(
    shared: SharedExpertConfig, with_kernels: bool, library: KernelLibrary
) -> None:
    weights, x = dict(shared_tensors(True)), torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(4))
    gate, up, down = (weights[f"mlp.shared_expert.{name}_proj.weight"] for name in ("gate", "up", "down"))
    added = (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
    if shared.gated:
        added = added * (x @ weights["mlp.shared_expert_gate.weight"].T).sigmoid()
    if with_kernels:
        without = by_kernels(build(torch.float32, kernels=library), x)
        both = by_kernels(build(torch.float32, shared=shared, kernels=library), x)
    else:
        without, both = build(torch.float32)(x), build(torch.float32, shared=shared)(x)
    torch.testing.assert_close(both - without, added, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernels_and_torch_agree(dtype: torch.dtype, library: KernelLibrary) -> None:
    x = torch.randn(70, HIDDEN, generator=torch.Generator().manual_seed(5)).to(dtype)
    expected = build(dtype, shared=GATED)(x)
    found = by_kernels(build(dtype, shared=GATED, kernels=library), x.float())
    assert (found - expected).norm() / expected.norm() < (2e-2 if dtype == torch.bfloat16 else 1e-5)


def test_every_product_is_measured() -> None:
    assert len(build(torch.float32).linears) == 1 + 2 * COUNT
    assert len(build(torch.float32, shared=UNGATED).linears) == 1 + 2 * COUNT + 2
    assert len(build(torch.float32, shared=GATED).linears) == 1 + 2 * COUNT + 3
