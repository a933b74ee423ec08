# SPDX-License-Identifier: Apache-2.0
"""Every form of quantized weights is loaded and multiplied on a device, which is not there: steps wait for nothing, and
weights that stay as they are go to the kernels that take them apart. The numbers of each form are those of a CPU
(`test_quantized_directories.py`), and the interpreter has the kernels' (`tests/support/gpu/product_cases.py`)."""

from pathlib import Path

import pytest
import torch
from architectures import hugging_model, read_model
from effort import by_default
from fp8_directory import write_fp8
from mxfp4_directory import EVEN, write_mxfp4
from pretend_device import PretendDevice
from quantized_directory import FORMS, LARGE, write_quantized
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

# The kernels that multiply weights of 8 and of 4 bits; all others become numbers while they are read.
STORED = {"fp8-blocks": "product_kernel", "mxfp4": "gate_up_kernel"}


def write(form: str, folder: Path) -> None:
    if form == "fp8-blocks":
        write_fp8(hugging_model("llama", LARGE), folder)
    elif form == "mxfp4":
        write_mxfp4(hugging_model("gpt_oss", EVEN), folder)
    else:
        write_quantized(hugging_model("llama", LARGE), folder, *FORMS[form])


@pytest.fixture(scope="module")
def there() -> PretendDevice:
    return PretendDevice()


@pytest.mark.parametrize("form", by_default({"awq", "fp8-blocks"}, [*FORMS, *STORED]))
def test_steps_with_its_weights_wait_for_nothing(there: PretendDevice, form: str, tmp_path: Path) -> None:
    write(form, tmp_path)
    kernels = set[str]()
    with there:
        model = read_model(tmp_path, torch.bfloat16, str(there.device))
        layout = layout_of(model)
        storage, limits = KVStorage(layout, 20, there.device), DeviceLimits(4, 32, 20)
        runner = DeviceRunner(model, storage, CudaLink(there.device), limits, AttentionBackend())
        engine = Engine(runner, Scheduler(BlockPool(20), layout, 2, StepBudget(32)))
        engine.add(sequence("a", [3] * 20, 3))
        while engine.has_work:
            with there.recording() as tape:
                engine.step()
            kernels |= set(tape.kernels)
            assert tape.to_device <= 1 and tape.to_host <= 1
    stored = {"product_kernel", "gate_up_kernel"} & kernels
    assert stored == ({STORED[form]} if form in STORED else set()) and engine.generated == 3
