# SPDX-License-Identifier: Apache-2.0
"""The runner follows from the device."""

import logging

import pytest
from pretend_device import PretendDevice
from tiny import build, layout_of, reference

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.runner_choice import make_runner, record_steps
from pontil.runtime.engine.runner.model_runner import NONE, ModelRunner

CONFIG = WorkerConfig("mixed:0", "mixed", "cpu", (0,), "folder", "tiny", "", "", max_num_seqs=2)


def test_a_cpu_has_the_plain_runner_and_records_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = build(reference())
    storage = KVStorage(layout_of(model), 4, model.device)
    made = make_runner(CONFIG, model, storage, 64, NONE, None)
    assert type(made) is ModelRunner
    record_steps(made)
    assert "recorded" not in caplog.text


@pytest.mark.parametrize("cells", ["auto", "int8", "fp8"])
def test_a_device_runs_recorded_steps_whatever_its_cells_are(cells: str, caplog: pytest.LogCaptureFixture) -> None:
    hugging = reference()
    with PretendDevice() as there, caplog.at_level(logging.INFO):
        model = build(hugging, device=str(there.device))
        storage = KVStorage(layout_of(model, cells=cells), 4, there.device)
        made = make_runner(CONFIG, model, storage, 64, NONE, None)
        assert isinstance(made, DeviceRunner) and made.limits.generated == 34
        record_steps(made)
    assert "decode steps in 0 MiB" in caplog.text and made.layers.captured.bytes > 0
