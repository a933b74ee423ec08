# SPDX-License-Identifier: Apache-2.0
"""The trial of an attention backend that was asked for, before a worker takes memory for its pool."""

import logging

import torch

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.attention_backends.choice import MODULES, OWN, SOURCES, limit_of, open_backend
from pontil.gpu_ops.attention_backends.self_check import AttentionShape, SelfCheck, objection
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import CELL_DTYPES
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import ModelError
from pontil.runtime.models.config import ModelConfig

logger = logging.getLogger("pontil.worker")


def check_attention(
    config: WorkerConfig,
    model: ModelConfig,
    layout: KVLayout,
    device: torch.device,
    reference: AttentionBackend | None = None,
) -> None:
    """Compare the backend that a configuration asks for with Triton's kernels, in layers as this worker's. Raises
    ModelError if it cannot compute them, or does it otherwise. On a CPU the option changes nothing."""
    name = config.attention_backend
    if name in OWN or device.type == "cpu":
        return
    found = refusal(config, model, layout, device, AttentionBackend() if reference is None else reference)
    if found is not None:
        raise ModelError(f"--attention-backend {name} is not possible: {found}; leave it out, and Triton computes")
    logger.info("attention is computed by %s, whose results on short texts are those of Triton's kernels", name)


def refusal(
    config: WorkerConfig, model: ModelConfig, layout: KVLayout, device: torch.device, reference: AttentionBackend
) -> str | None:
    name = config.attention_backend
    if config.deterministic:
        return "with --deterministic a row's bits must not depend on the batch, which only Triton's kernels keep"
    dtype = CELL_DTYPES[layout.dtype]
    limit = limit_of(name, layout.planes, layout.head_dim, dtype, model.sinks)
    if limit is not None:
        return limit
    heads, kv_heads = model.num_heads // config.ranks, len(layout.kv_heads)
    shape = AttentionShape(heads, kv_heads, layout.head_dim, dtype, layout.block_size, model.windows or (None,))
    return tried(name, shape, device, reference)


def tried(name: str, shape: AttentionShape, device: torch.device, reference: AttentionBackend) -> str | None:
    """Return why a backend's results are not to be had, or are others than the reference's."""
    check = SelfCheck(shape, device)
    rows, width = len(check.tables) + 1, check.tables.shape[1]
    try:
        return objection(open_backend(name, device, rows, width), reference, shape, device)
    except ModuleNotFoundError as error:
        missing = error.name or MODULES[name]
        return f"{missing} is not installed: the backend is of {SOURCES[name]}"
    # A package for another GPU, CUDA or torch fails as it is loaded, compiles or starts.
    except (ImportError, RuntimeError, OSError, ValueError, TypeError, AttributeError) as error:
        return f"its package fails here ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
