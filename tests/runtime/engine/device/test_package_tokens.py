# SPDX-License-Identifier: Apache-2.0
"""Engines whose attention other packages compute make the tokens of the plain runner, with steps that are recorded and
started again. The host stands for the device, so that numbers are real."""

from typing import Any

import pytest
import torch
from attention_packages import FakeFlashAttention, FakeFlashInfer, PlainHost
from host_device import HostLink, device_engine
from tiny import VOCAB, build, drain, reference, rig, sequence
from torch import Tensor

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.attention_backends.flash_attention import FlashAttentionBackend
from pontil.gpu_ops.attention_backends.flashinfer import FlashInferBackend
from pontil.gpu_ops.kv.attention import write_kv
from pontil.gpu_ops.kv.device_attention import DeviceAttention
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.rotary import turn_heads

SEATS, TYPES = 6, (torch.float32,)


def written(self: DeviceAttention, layer: LayerAttention, q: Tensor, k: Tensor, v: Tensor, turn: Any) -> Tensor:
    """DeviceAttention.written by torch."""
    q, k = (q, k) if turn is None else turn_heads(q, k, turn)
    used = self.tile.slots >= 0
    slots, size = self.tile.slots[used].long(), self.pool.shape[4]
    write_kv(self.pool, layer.layer, slots // size, slots % size, k[used], v[used])
    return q


def flash_attention() -> AttentionBackend:
    return FlashAttentionBackend(FakeFlashAttention(types=TYPES).flash_attn_with_kvcache)


def flashinfer() -> AttentionBackend:
    return FlashInferBackend(FakeFlashInfer(types=TYPES), torch.device("cpu"), PlainHost(), SEATS + 32, 64)


def prompt(length: int) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(length)).tolist()


@pytest.mark.parametrize("make", [flash_attention, flashinfer])
def test_tokens_are_those_of_the_plain_runner(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceAttention, "written", written)
    model = build(reference())
    link = HostLink()
    engine, runner = device_engine(model, seats=SEATS, budget=64, drafts=2, link=link, backend=make())
    runner.record([one for one in runner.layers.shapes if one[0] <= 8])
    plain = rig(model, budget=64).engine
    for one in (engine, plain):
        for length in (1, 15, 16, 70, 130, 33):
            one.add(sequence(f"s{length}", prompt(length), 12, temperature=0.7))
    assert drain(engine) == drain(plain) and link.replayed > 0
