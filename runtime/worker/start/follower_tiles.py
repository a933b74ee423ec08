# SPDX-License-Identifier: Apache-2.0
"""Construction of what computes a driver's tiles in a follower."""

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.device.runner_choice import FollowerTiles, make_follower, record_steps
from pontil.runtime.worker.start.loading import ModelPart, fit


def open_tiles(config: WorkerConfig, loaded: ModelPart, storage: KVStorage) -> FollowerTiles:
    """Open a follower's side of the driver's runner, with the same limits. On a device its decode steps are recorded,
    as the driver's are now."""
    model = fit(loaded.config, config, loaded.layout, storage.num_blocks, loaded.layout.block_bytes)
    made = make_follower(config, loaded.model, storage, model.max_model_len)
    record_steps(made)
    return made
