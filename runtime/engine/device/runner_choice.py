# SPDX-License-Identifier: Apache-2.0
"""The choice of an engine's runner by its device."""

import logging
from collections.abc import Callable

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.attention_backends.choice import open_backend
from pontil.gpu_ops.draws.filtered_draws import DRAWS, FilteredDraws
from pontil.gpu_ops.products.batch_invariance import GENERATED_ROWS
from pontil.runtime.cache.layout import EIGHT_BITS, SCALE_BYTES
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.device.buckets import widths
from pontil.runtime.engine.device.device_follower import DeviceFollower
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.runner.model_runner import Followers, ModelRunner
from pontil.runtime.engine.sequences.streamed import FrameMaker
from pontil.runtime.engine.tiles.runner import TileRunner
from pontil.runtime.errors import ModelError
from pontil.runtime.models.model import Model

logger = logging.getLogger("pontil.engine")

FollowerTiles = TileRunner | DeviceFollower
# Decode steps behind the largest that are recorded to learn what one takes.
SOME_STEPS = 4


def make_runner(
    config: WorkerConfig,
    model: Model,
    storage: KVStorage,
    max_model_len: int,
    followers: Followers,
    maker: FrameMaker | None,
) -> ModelRunner:
    """Return the runner of the model's device, the plain one on a CPU."""
    if model.device.type == "cpu":
        return ModelRunner(model, storage, followers, maker)
    limits = limits_of(config, storage, max_model_len)
    backend = backend_of(config, model, limits)
    runner = DeviceRunner(model, storage, CudaLink(model.device), limits, backend, followers, maker)
    if DRAWS in config.kernel_backend:
        runner.draw = FilteredDraws.of_package()
    return runner


def make_follower(config: WorkerConfig, model: Model, storage: KVStorage, max_model_len: int) -> FollowerTiles:
    """Return a rank's side of what `make_runner` returns for its driver."""
    if model.device.type == "cpu":
        return TileRunner(model, storage)
    limits = limits_of(config, storage, max_model_len)
    return DeviceFollower(model, storage, CudaLink(model.device), limits, backend_of(config, model, limits))


def backend_of(config: WorkerConfig, model: Model, limits: DeviceLimits) -> AttentionBackend:
    return open_backend(config.attention_backend, model.device, limits.generated, widths(limits.blocks)[-1])


def limits_of(config: WorkerConfig, storage: KVStorage, max_model_len: int) -> DeviceLimits:
    """Return the limits of a worker's steps. Raises ModelError for a pool that kernels do not read."""
    layout = storage.layout
    if layout.dtype in EIGHT_BITS and layout.head_dim % SCALE_BYTES:
        raise ModelError(
            f"--kv-cache-dtype {layout.dtype} is not possible on GPUs with heads of {layout.head_dim} dimensions, "
            f"which are no multiple of {SCALE_BYTES}: choose auto"
        )
    size = config.step_size
    pages = layout.blocks_for(max_model_len) * layout.kv_pages
    return DeviceLimits(size.seats + GENERATED_ROWS, size.tokens, pages)


def estimate_recordings(runner: ModelRunner, held: Callable[[], int]) -> int:
    """Return the memory that all recorded decode steps of a device will take. `held` returns the bytes that are taken
    of it now. The largest step's memory is shared by all; a few more are recorded to see what each takes besides, in
    the driver."""
    if not isinstance(runner, DeviceRunner):
        return 0
    shapes = runner.layers.shapes
    before = held()
    runner.record(shapes[:1])
    largest = max(0, held() - before)
    some = shapes[1 : 1 + SOME_STEPS]
    if not some:
        return largest
    runner.record(some)
    further_bytes = max(0, held() - before - largest)
    return largest + further_bytes * (len(shapes) - 1) // len(some)


def record_steps(runner: ModelRunner | FollowerTiles) -> None:
    """Record the decode steps of a device, together with the other ranks, and say how much memory they take."""
    if isinstance(runner, DeviceRunner | DeviceFollower):
        # One rank may have made its pool long before another.
        runner.model.communicator.meet()
        runner.record(runner.layers.shapes)
        captured_steps = runner.layers.captured
        logger.info("recorded %d decode steps in %d MiB", len(captured_steps.steps), captured_steps.bytes >> 20)
