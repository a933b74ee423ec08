# SPDX-License-Identifier: Apache-2.0
"""The runner follows from the device."""

import gc
import logging
from dataclasses import replace

import pytest
from effort import by_default
from pretend_device import PretendDevice
from tiny import build, layout_of, reference

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.runner_choice import limits_of, make_runner, record_steps
from pontil.runtime.engine.runner.model_runner import NONE, ModelRunner
from pontil.runtime.errors import ModelError
from pontil.runtime.worker.start.draft_loading import draft_runner, step_bytes_of

CONFIG = WorkerConfig("mixed:0", "mixed", "cpu", (0,), "folder", "tiny", "", "", max_num_seqs=2)


def test_a_cpu_has_the_plain_runner_and_records_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = build(reference())
    storage = KVStorage(layout_of(model), 4, model.device)
    made = make_runner(CONFIG, model, storage, 64, NONE, None)
    assert type(made) is ModelRunner
    record_steps(made)
    assert "recorded" not in caplog.text


def test_scales_that_would_lie_across_words_are_refused() -> None:
    model = build(reference())
    layout = replace(layout_of(model, cells="int8"), head_dim=6)
    with pytest.raises(ModelError, match="int8 is not possible on GPUs with heads of 6 dimensions"):
        limits_of(CONFIG, KVStorage(layout, 4, model.device), 64)


class RoomMeter:
    """The memory of the pretend device."""

    peak = 0

    def __init__(self, there: PretendDevice) -> None:
        self.there = there

    @property
    def total(self) -> int:
        return int(self.there.room.info[1])

    @property
    def free(self) -> int:
        return int(self.there.room.info[0])

    def reset(self) -> None:
        gc.collect()


def test_what_guesses_has_recorded_steps_whose_memory_is_known_before() -> None:
    hugging = reference()
    with PretendDevice() as there:
        model, meter = build(hugging, device=str(there.device)), RoomMeter(there)
        layout = layout_of(model)
        planned = step_bytes_of(CONFIG, model, layout, meter)
        storage = KVStorage(layout, 4, there.device)
        before = meter.free
        made = draft_runner(CONFIG, model, storage)
        record_steps(made)
        assert isinstance(made, DeviceRunner) and len(made.layers.captured.steps) == len(made.layers.shapes)
        assert 0.9 * planned < before - meter.free <= 1.1 * planned


@pytest.mark.parametrize("cells", by_default({"fp8"}, ["auto", "int8", "fp8"]))
def test_a_device_runs_recorded_steps_whatever_its_cells_are(cells: str, caplog: pytest.LogCaptureFixture) -> None:
    hugging = reference()
    with PretendDevice() as there, caplog.at_level(logging.INFO):
        model = build(hugging, device=str(there.device))
        storage = KVStorage(layout_of(model, cells=cells), 4, there.device)
        made = make_runner(CONFIG, model, storage, 64, NONE, None)
        assert isinstance(made, DeviceRunner) and made.limits.generated == 34
        record_steps(made)
    assert "decode steps in 0 MiB" in caplog.text and made.layers.captured.bytes > 0
