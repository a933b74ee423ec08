# SPDX-License-Identifier: Apache-2.0
"""The choice of an engine's runner by its device."""

import logging
from collections.abc import Callable

import torch

from pontil.gpu_ops.batch_invariance import GENERATED_ROWS
from pontil.gpu_ops.device_attention import CELLS, DeviceAttention
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config import WorkerConfig
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink, DeviceLink
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.model_runner import NONE, Followers, ModelRunner
from pontil.runtime.engine.streamed import FrameMaker
from pontil.runtime.models.model import Model

logger = logging.getLogger("pontil.engine")


def make_runner(
    config: WorkerConfig, model: Model, storage: KVStorage, max_model_len: int, followers: Followers,
    maker: FrameMaker | None, link: Callable[[torch.device], DeviceLink] = CudaLink,
) -> ModelRunner:  # fmt: skip
    """Return the plain runner on a CPU, and for pools with cells that devices' kernels do not read."""
    if model.device.type == "cpu" or storage.tensor.dtype not in CELLS:
        return ModelRunner(model, storage, followers, maker)
    limits = DeviceLimits(
        config.max_num_seqs + GENERATED_ROWS, config.max_num_batched_tokens, storage.layout.blocks_for(max_model_len)
    )
    others = followers if config.ranks > 1 else NONE
    return DeviceRunner(model, storage, link(model.device), limits, DeviceAttention, others, maker)


def record_steps(runner: ModelRunner) -> None:
    """Record the decode steps of a device, and say how much memory they take."""
    if isinstance(runner, DeviceRunner) and runner.followers is NONE:
        runner.warm_up()
        captured = runner.layers.captured
        logger.info("recorded %d decode steps in %d MiB", len(captured.steps), captured.bytes >> 20)
