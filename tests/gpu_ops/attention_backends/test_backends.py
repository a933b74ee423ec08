# SPDX-License-Identifier: Apache-2.0
"""Attention by other packages beside torch's, in the words that the packages document."""

from typing import Any

import numpy as np
import pytest
import torch
from attention_packages import FakeFlashAttention, FakeFlashInfer, PlainHost
from pages import LAYER, Heads, Scene, Span
from torch import Tensor

from pontil.gpu_ops.attention_backends.backend import AttentionBackend, TileRuns
from pontil.gpu_ops.attention_backends.flash_attention import FlashAttentionBackend
from pontil.gpu_ops.attention_backends.flashinfer import FlashInferBackend
from pontil.gpu_ops.kv.device_attention import DeviceAttention

CPU = torch.device("cpu")
TOLERANCE = 1.2e-2


def flash_attention() -> AttentionBackend:
    return FlashAttentionBackend(FakeFlashAttention().flash_attn_with_kvcache)


def flashinfer() -> AttentionBackend:
    return FlashInferBackend(FakeFlashInfer(), CPU, PlainHost(), 8, 40)


def runs_of(scene: Scene) -> TileRuns:
    width = len(scene.blocks(0)) + scene.spare
    if scene.generated:
        ends = np.array([place + 1 for _, place in scene.places] + [0] * scene.padding, np.int32)
        return TileRuns(True, len(ends), width, np.ones_like(ends), ends)
    counts = np.array([count for _, _, count in scene.spans], np.int32)
    ends = np.array([start + count for _, start, count in scene.spans], np.int32)
    return TileRuns(False, int(counts.sum()) + scene.padding, width, counts, ends)


def attended(backend: AttentionBackend, scene: Scene, pool: Tensor) -> Tensor:
    shape = scene.shape
    q, _, _ = scene.rows()
    backend.plan(pool, lambda: runs_of(scene))
    attention = backend.attention(pool, scene.tile(CPU))
    assert isinstance(attention, DeviceAttention)
    return attention.attend(shape.layer(LAYER, shape.dim**-0.5, CPU), q)


def compare(backend: AttentionBackend, scene: Scene) -> None:
    expected, pool = scene.by_torch()
    # A page that is read beyond a text's end would show.
    made = attended(backend, scene, pool)
    used = len(scene.places)
    assert (made[:used].float() - expected[:used].float()).abs().max() <= TOLERANCE
    assert made.shape == expected.shape and not made[used:].any() and made.dtype == expected.dtype


GROUPED, WINDOWED = Heads(8, 2, 64, torch.bfloat16), Heads(2, 2, 64, torch.float16, window=33)


@pytest.mark.parametrize("make", [flash_attention, flashinfer])
@pytest.mark.parametrize("shape", [GROUPED, WINDOWED], ids=["grouped", "windowed"])
def test_generated_rows_are_as_by_torch(make: Any, shape: Heads) -> None:
    backend = make()
    for spans in (((0, 0, 1), (1, 64, 1), (2, 130, 2)), ((1, 15, 1), (0, 16, 2), (2, 5, 1))):
        compare(backend, Scene(shape, spans, True, spare=3))


@pytest.mark.parametrize("make", [flash_attention, flashinfer])
@pytest.mark.parametrize("shape", [GROUPED, WINDOWED], ids=["grouped", "windowed"])
def test_prompts_are_as_by_torch(make: Any, shape: Heads) -> None:
    backend = make()
    prompts: tuple[tuple[Span, ...], ...] = (((0, 0, 70), (1, 130, 3)), ((1, 60, 10),))
    for spans in prompts:
        compare(backend, Scene(shape, spans, False, padding=2))


def test_layers_of_two_kinds_are_planned_apart() -> None:
    """A layer without a window behind one with it, in a tile whose plan was made before any was known."""
    scene = Scene(WINDOWED, ((0, 100, 1), (1, 20, 1)), True)
    _, pool = scene.by_torch()
    backend = flashinfer()
    q, _, _ = scene.rows()
    backend.plan(pool, lambda: runs_of(scene))
    attention = backend.attention(pool, scene.tile(CPU))
    assert isinstance(attention, DeviceAttention)
    whole = Heads(2, 2, 64, torch.float16)
    for shape in (WINDOWED, whole):
        one = Scene(shape, scene.spans, True)
        expected, _ = one.by_torch()
        made = attention.attend(shape.layer(LAYER, shape.dim**-0.5, CPU), q)
        assert (made[:2] - expected[:2]).abs().max() <= TOLERANCE
