# SPDX-License-Identifier: Apache-2.0
"""The backends by their names, and what they cannot compute."""

import importlib
from typing import Any

import torch

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.attention_backends.flash_attention import FlashAttentionBackend
from pontil.gpu_ops.attention_backends.flashinfer import CudaHost, FlashInferBackend, HostSide
from pontil.gpu_ops.attention_backends.self_check import TOLERANCES

AUTO = "auto"
OWN = (AUTO, AttentionBackend.name)
"""The names of our own kernels. No other is chosen by itself: none was proved on any kind of GPU (decision 091)."""
MODULES = {FlashAttentionBackend.name: "flash_attn_interface", FlashInferBackend.name: "flashinfer"}
SOURCES = {
    FlashAttentionBackend.name: "FlashAttention-3, built from hopper/ of github.com/Dao-AILab/flash-attention",
    FlashInferBackend.name: "flashinfer-python (pip install 'pontil[flashinfer]')",
}
# FlashAttention-3 reads 16 bytes of a head at a time, and has registers for so many dimensions.
HEAD_STEP, LARGEST_HEAD = 8, 256


def limit_of(name: str, planes: int, dim: int, dtype: torch.dtype, sinks: bool) -> str | None:
    """Return why a backend cannot compute a model's layers, whose pool has so many planes of heads of `dim` cells."""
    if planes == 1:
        return "it reads keys and values, and this model stores latents"
    if sinks:
        return "it has no scores of heads that belong to no key, which this model has"
    if dtype not in TOLERANCES:
        return "it computes in bfloat16 and float16 only (--dtype, --kv-cache-dtype)"
    if name == FlashAttentionBackend.name and (dim % HEAD_STEP or dim > LARGEST_HEAD):
        return f"its heads have a multiple of {HEAD_STEP} dimensions, {LARGEST_HEAD} at most, and this model's {dim}"
    return None


def package_of(name: str) -> Any:
    """Import a backend's package. Raises ImportError, or what an extension of other versions raises."""
    return importlib.import_module(MODULES[name])


def open_backend(
    name: str, device: torch.device, rows: int, width: int, host: HostSide | None = None
) -> AttentionBackend:
    """Return the backend for generated tiles of at most `rows` rows, whose tables have at most `width` pages."""
    if name in OWN:
        return AttentionBackend()
    package = package_of(name)
    if name == FlashAttentionBackend.name:
        return FlashAttentionBackend(package.flash_attn_with_kvcache)
    return FlashInferBackend(package, device, CudaHost(device) if host is None else host, rows, width)
