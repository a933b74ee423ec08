# SPDX-License-Identifier: Apache-2.0
"""Rows that are no ids, and states that others read, on a device that is not there: steps make one copy each way, and
read nothing in the middle."""

from pathlib import Path

import pytest
import torch
from architectures import read_model
from pretend_device import PretendDevice
from tiny import layout_of, sequence
from tiny_draft_layers import write_eagle_head
from tiny_llama import write_tiny_llama
from torch import Tensor

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.drafts.device_head import DeviceLayerRunner
from pontil.runtime.engine.drafts.head import DraftHead
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.streamed import StageStreams
from pontil.runtime.loaders.draft_layers import find_draft_layer, open_draft_layer
from pontil.runtime.models.families.registry import build_draft_layer
from pontil.runtime.models.model import Model
from pontil.runtime.models.weights import Weights


@pytest.fixture(scope="module")
def there() -> PretendDevice:
    return PretendDevice()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("pair")
    write_tiny_llama(made / "target")
    write_eagle_head(made / "head", made / "target")
    return made


@pytest.fixture(scope="module")
def model(there: PretendDevice, folder: Path) -> Model:
    with there:
        made: Model = read_model(folder / "target", device=str(there.device))
        return made


def engine_of(there: PretendDevice, model: Model) -> tuple[Engine, DeviceRunner]:
    layout = layout_of(model)
    storage, limits = KVStorage(layout, 20, there.device), DeviceLimits(8, 64, 20)
    runner = DeviceRunner(model, storage, CudaLink(there.device), limits, AttentionBackend())
    return Engine(runner, Scheduler(BlockPool(20), layout, 4, StepBudget(64))), runner


def test_each_guess_of_a_draft_layer_is_one_copy_each_way(there: PretendDevice, model: Model, folder: Path) -> None:
    """From states that the target's steps kept without a copy."""
    source = find_draft_layer(folder / "target", folder / "head")
    assert source is not None
    own = open_draft_layer(source)
    with there:
        layer = build_draft_layer(own.config, Weights(own.tensors(), there.device, torch.float32), model, source.form)
        engine, runner = engine_of(there, model)
        runner.keeps_states = True
        one = sequence("a", [3] * 20, 9)
        engine.add(one)
        while len(one.output) < 3:
            with there.recording() as tape:
                engine.step()
            assert tape.to_device <= 1 and tape.to_host <= 1
        states = one.drafting.target_states
        assert states is not None and states.end >= one.length - 1 and states.rows[0].device == there.device
        layout = KVLayout(16, 1, own.config.num_kv_heads, own.config.head_dim, "float32")
        storage, limits = KVStorage(layout, 20, there.device), DeviceLimits(8, 64, 20)
        drafting = DeviceLayerRunner(layer, storage, CudaLink(there.device), limits, AttentionBackend())
        drafting.record(drafting.layers.shapes)
        head = DraftHead(drafting, BlockPool(20), layout, own.config.vocab_size)
        replays = there.driver.replays
        with there.recording() as tape:
            (guesses,) = head.propose([(one, 4)])
        assert len(guesses) == 4 and (tape.to_device, tape.to_host) == (4, 4)
        assert there.driver.replays == replays + 4


class ZeroRows:
    """Rows of zeros in the host's memory, instead of ids."""

    def __init__(self, size: int) -> None:
        self.size, self.next_index = size, 0
        self.frames: list[list[int]] = []

    def can_resume(self, frames: object, next_index: int) -> bool:
        return False

    def resume(self, frames: object, next_index: int) -> None:
        raise AssertionError("nothing is handed over here")

    def ready(self, start: int, stop: int) -> int:
        return stop - start

    def rows(self, start: int, count: int) -> Tensor:
        return torch.zeros(count, self.size)

    def take_frame(self, frame: list[int]) -> None:
        raise AssertionError("no frames are made here")


class CountedStates:
    """Counts the positions whose states came, in the host's memory."""

    layers, is_full = 1, False

    def __init__(self) -> None:
        self.count = 0

    def take(self, start: int, embedding: Tensor, hidden: Tensor) -> None:
        assert start == self.count and embedding.device.type == hidden.device.type == "cpu"
        self.count += len(hidden)


def test_rows_of_other_stages_go_with_the_step_and_states_come_back_with_it(there: PretendDevice, model: Model) -> None:
    with there:
        engine, _ = engine_of(there, model)
        one, states = sequence("a", [3] * 20, 4), CountedStates()
        one.streams = StageStreams(inputs=ZeroRows(model.config.hidden_size), states=states)
        engine.add(one)
        while engine.has_work:
            with there.recording() as tape:
                engine.step()
            assert (tape.to_device, tape.to_host) == (1, 1)
    assert states.count == 20 + 3 and len(one.output) == 4
