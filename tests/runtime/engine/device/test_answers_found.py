# SPDX-License-Identifier: Apache-2.0
"""The ways of computing with which the next turn of a conversation finds a finished answer at once (B3): on devices
whose rows have no fixed bits. A `--deterministic` device computes it again first, as torch does on a CPU."""

from pathlib import Path

import pytest
from architectures import hugging_model, read_model
from effort import by_default
from pretend_device import PretendDevice
from tiny import layout_of, sequence

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.models.model import Model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("llama")
    hugging_model("llama").save_pretrained(made)
    return made


def engine_of(model: Model, there: PretendDevice) -> Engine:
    layout = layout_of(model)
    scheduler = Scheduler(BlockPool(100), layout, 8, StepBudget(64))
    limits = DeviceLimits(40, 64, layout.blocks_for(model.config.max_model_len))
    storage = KVStorage(layout, 100, model.device)
    return Engine(DeviceRunner(model, storage, CudaLink(there.device), limits, AttentionBackend()), scheduler)


def found_by_the_next_turn(engine: Engine) -> int:
    first = sequence("a", [3] * 20, 13)
    engine.add(first)
    while engine.has_work:
        engine.step()
    second = sequence("b", [*first.prompt, *first.output, 5], 2)
    engine.add(second)
    while engine.has_work:
        engine.step()
    return second.history.cached


@pytest.mark.parametrize(("deterministic", "found"), by_default({(True, 16)}, [(False, 32), (True, 16)]))
def test_on_a_device(path: Path, deterministic: bool, found: int) -> None:
    there = PretendDevice()
    with there:
        model = read_model(path, device=str(there.device), deterministic=deterministic)
        engine = engine_of(model, there)
        assert found_by_the_next_turn(engine) == found
        assert engine.scheduler.has_spare_work != (not deterministic)
