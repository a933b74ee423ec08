# SPDX-License-Identifier: Apache-2.0
"""A worker that is asked for another package's attention starts only where it computes what Triton's kernels do."""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_packages import FakeFlashAttention, FakeFlashInfer

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.attention_backends.choice import MODULES, limit_of, open_backend
from pontil.gpu_ops.attention_backends.flash_attention import FlashAttentionBackend
from pontil.gpu_ops.attention_backends.self_check import AttentionShape, objection
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.config.worker_config import ATTENTION_BACKENDS, WorkerConfig
from pontil.runtime.errors import ModelError
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.worker.start.attention_check import check_attention

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
