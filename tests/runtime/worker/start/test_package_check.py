# SPDX-License-Identifier: Apache-2.0
"""A worker that is asked for other kernels starts only where they compute what Triton's do."""

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from attention_packages import FakeFlashAttention, FakeFlashInfer
from step_packages import FakeSampling

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.attention_backends.choice import MODULES, limit_of, open_backend
from pontil.gpu_ops.attention_backends.flash_attention import FlashAttentionBackend
from pontil.gpu_ops.attention_backends.self_check import AttentionShape, objection
from pontil.gpu_ops.draws.filtered_draws import DRAWS
from pontil.gpu_ops.products.scaled_weights import ScaledWeights
from pontil.gpu_ops.products.torch_products import EXPERTS, PRODUCTS, TorchProducts
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.config.worker_config import ATTENTION_BACKENDS, KERNEL_BACKENDS, WorkerConfig
from pontil.runtime.errors import ModelError
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.worker.start.package_check import check_attention, check_limits, check_results

CPU, GPU = torch.device("cpu"), torch.device("meta")
SHAPE = AttentionShape(8, 2, 64, torch.bfloat16, 16, (None, 20))
CONFIG = WorkerConfig("mixed:0", "mixed", "cuda:0", (0,), "folder", "tiny", "", "", attention_backend="flash-attn")
MODEL = ModelConfig("llama", 100, 512, 64, 2, 8, 2, 64, 128, 1e-5, 1e4, True, "bfloat16", (0,))
LAYOUT = KVLayout(16, 2, 2, 64, "bfloat16")


class MutedAttention(FakeFlashAttention):
    """A kernel that starts and writes nothing."""

    def flash_attn_with_kvcache(self, q: Any, *given: Any, **named: Any) -> torch.Tensor:
        return torch.full_like(q, torch.nan)


def kernels(module: FakeFlashAttention) -> AttentionBackend:
    return FlashAttentionBackend(module.flash_attn_with_kvcache)


def test_every_backend_has_a_name_of_the_option() -> None:
    assert set(ATTENTION_BACKENDS) == {"auto", "triton", *MODULES}


def test_a_backend_that_agrees_is_taken() -> None:
    assert objection(kernels(FakeFlashAttention()), kernels(FakeFlashAttention()), SHAPE, CPU) is None


@pytest.mark.parametrize(("fault", "says"), [(FakeFlashAttention(skew=1), "differ by"), (MutedAttention(), "nan")])
def test_a_backend_that_does_not_agree_is_refused(fault: FakeFlashAttention, says: str) -> None:
    found = objection(kernels(fault), kernels(FakeFlashAttention()), SHAPE, CPU)
    assert found is not None and says in found


def check(config: WorkerConfig = CONFIG, model: ModelConfig = MODEL, layout: KVLayout = LAYOUT) -> None:
    check_attention(config, model, layout, GPU, kernels(FakeFlashAttention()))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, "flash_attn_interface is not installed: the backend is of FlashAttention-3"),
        ({"attention_backend": "flashinfer"}, "pip install 'pontil\\[flashinfer\\]'"),
        ({"deterministic": True}, "only Triton's kernels keep"),
    ],
)
def test_a_worker_says_why_it_cannot(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=f"--attention-backend .* is not possible: .*{says}.*; leave it out"):
        check(replace(CONFIG, **changed))


def test_models_that_a_backend_does_not_read_are_refused() -> None:
    with pytest.raises(ModelError, match="stores latents"):
        check(layout=replace(LAYOUT, planes=1))
    with pytest.raises(ModelError, match="belong to no key"):
        check(model=replace(MODEL, sinks=True))
    with pytest.raises(ModelError, match="bfloat16 and float16 only"):
        check(layout=replace(LAYOUT, dtype="float32"))
    assert limit_of("flash-attn", 2, 320, torch.bfloat16, sinks=False) is not None
    assert limit_of("flashinfer", 2, 320, torch.bfloat16, sinks=False) is None


def test_a_package_of_another_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn_interface", object())
    with pytest.raises(ModelError, match="its package fails here .AttributeError: .*flash_attn_with_kvcache"):
        check_attention(CONFIG, MODEL, LAYOUT, GPU)


def test_nothing_is_tried_where_triton_or_a_cpu_computes() -> None:
    for name in ("auto", "triton"):
        check(replace(CONFIG, attention_backend=name))
    check_attention(CONFIG, MODEL, LAYOUT, CPU)


def test_a_backend_is_opened_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn_interface", FakeFlashAttention())
    monkeypatch.setitem(sys.modules, "flashinfer", FakeFlashInfer())
    made = {name: open_backend(name, CPU, 4, 8).name for name in ATTENTION_BACKENDS if name != "flashinfer"}
    assert made == {"auto": "triton", "triton": "triton", "flash-attn": "flash-attn"}


PARTS = replace(CONFIG, attention_backend="auto", kernel_backend=KERNEL_BACKENDS)
HOPPER = (9, 0)


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The capability of the device that there is not: the first of these."""
    known = [HOPPER]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: known[0])
    return known


def limits(name: str, dtype: torch.dtype = torch.bfloat16, **changed: Any) -> tuple[str, ...]:
    return check_limits(replace(PARTS, kernel_backend=(name,), **changed), dtype, GPU)


def test_every_part_has_a_name_of_the_option(capability: list[tuple[int, int]]) -> None:
    assert set(KERNEL_BACKENDS) == {DRAWS, EXPERTS, PRODUCTS} and check_limits(PARTS, torch.bfloat16, GPU) == (
        KERNEL_BACKENDS
    )
    assert check_limits(PARTS, torch.float32, CPU) == () == check_limits(CONFIG, torch.float32, GPU)


@pytest.mark.parametrize(
    ("name", "known", "says"),
    [
        (PRODUCTS, (8, 6), "floats of 8 bits, as of NVIDIA's Ada"),
        (EXPERTS, (8, 9), "Hopper and Blackwell only"),
        (EXPERTS, (12, 0), "Hopper and Blackwell only"),
    ],
)
def test_a_gpu_without_such_kernels_is_told(
    name: str, known: tuple[int, int], says: str, capability: list[tuple[int, int]]
) -> None:
    assert limits(name) == (name,)
    capability[0] = known
    with pytest.raises(ModelError, match=f"--kernel-backend {name} is not possible: .*{says}.*; leave it out"):
        limits(name)


def test_parts_need_bfloat16_and_no_promise_about_the_batch(capability: list[tuple[int, int]]) -> None:
    for name in (PRODUCTS, EXPERTS):
        with pytest.raises(ModelError, match="results are bfloat16"):
            limits(name, torch.float16)
    for name in KERNEL_BACKENDS:
        with pytest.raises(ModelError, match="only Triton's kernels keep"):
            limits(name, deterministic=True)


def test_filters_are_tried_before_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried_with(package: object) -> None:
        monkeypatch.setitem(sys.modules, "flashinfer", package)
        check_results((DRAWS,), TorchProducts(), 300, CPU)

    tried_with(FakeSampling().package)
    for fault in (FakeSampling(more=1), FakeSampling(less=0.01)):
        with pytest.raises(ModelError, match="draws other ids than Triton's kernels; leave it out"):
            tried_with(fault.package)
    with pytest.raises(ModelError, match="its package fails here .AttributeError: .*sampling"):
        tried_with(object())
    with pytest.raises(ModelError, match="is not installed: the backend is of flashinfer-python"):
        monkeypatch.delitem(sys.modules, "flashinfer")
        check_results((DRAWS,), TorchProducts(), 300, CPU)


def test_products_are_tried_before_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    products = TorchProducts((PRODUCTS,))
    with pytest.raises(ModelError, match="no weight of this model is floats of 8 bits with one scale"):
        check_results((PRODUCTS,), products, 300, CPU)
    numbers = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    weights = ScaledWeights(numbers.to(torch.float8_e4m3fn), torch.linspace(1, 2, 32).unsqueeze(1), 64)
    assert products.linear(weights, torch.bfloat16, CPU, None) is not None
    check_results((PRODUCTS,), products, 300, CPU)
    multiply = torch._scaled_mm
    wrong = partial(multiply, scale_b=torch.ones(1, 32))
    for fault in (lambda *some, scale_b, **named: wrong(*some, **named), lambda rows, *some, **named: muted(rows, 32)):
        monkeypatch.setattr(torch, "_scaled_mm", fault)
        with pytest.raises(ModelError, match="its results differ by .* of the largest .*; leave it out"):
            check_results((PRODUCTS,), products, 300, CPU)


def muted(rows: torch.Tensor, outputs: int) -> torch.Tensor:
    """A kernel that starts and writes nothing."""
    return torch.full((len(rows), outputs), torch.nan)
