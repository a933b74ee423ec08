# SPDX-License-Identifier: Apache-2.0
"""Every form of quantized weights is loaded and multiplied on a device, which is not there: weights take the bytes of
their numbers, as a plan counts them, and steps wait for nothing. The numbers of each form are those of a CPU, and the
interpreter has the kernels' (`tests/support/gpu/level_cases.py`)."""

from pathlib import Path

import pytest
import torch
from architectures import hugging_model, read_model
from effort import by_default
from fp8_directory import write_fp8
from mxfp4_directory import EVEN, write_mxfp4
from pretend_device import PretendDevice
from quantized_directory import EIGHT_BITS, FORMS, LARGE, write_quantized
from tiny import layout_of, sequence

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights
from pontil.gpu_ops.products.level_weights import LevelWeights, on_device
from pontil.gpu_ops.products.linear import Linear
from pontil.gpu_ops.products.scaled_weights import ScaledLinear
from pontil.gpu_ops.triton.device_weights import BYTES, NIBBLES
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.models.model import Model
from pontil.runtime.probe.weight_memory import weight_memory

CPU = torch.device("cpu")
# The kernels that multiply a model's quantized weights, where they are not those of all products.
KERNELS = {"mxfp4": "gate_up_kernel"}
# No groups of one size: they become numbers when they are read.
UNEVEN = {"float8-block"}


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


def held(product: object) -> int:
    """Return the bytes of a product's weight on its device, but for the units of an output, which are few."""
    assert isinstance(product, Linear)
    made = product.on_device
    parts = (made.numbers, made.scales)
    assert all(one is None or one.device.type == "pretend" for one in (*parts, made.order))
    units = 8 * made.outputs if made.kind in (BYTES, NIBBLES) else 0
    return sum(one.nbytes for one in parts if one is not None) - units


def check_bytes(form: str, folder: Path, model: Model) -> None:
    """Numbers of 4 bits take a half of a byte, and all of a model what its plan says."""
    for product in model.linears:
        assert isinstance(product, ScaledLinear) == (form not in UNEVEN)
        if isinstance(product, ScaledLinear) and isinstance(product.weights, LevelWeights):
            numbers = product.weights.numbers
            assert numbers.nbytes == product.out_features * product.in_features // (1 if form in EIGHT_BITS else 2)
    taken = sum(held(product) for product in model.linears)
    shapes = model.config.vocab_size * model.config.hidden_size
    quantization = "none" if form in UNEVEN else "gguf"
    said = weight_memory(folder, model.config, quantization, 2, on_host=False).held
    # A bias and a norm are a few numbers.
    assert said - 2 * 2 * shapes == pytest.approx(taken, rel=0.03)


@pytest.mark.parametrize("form", by_default({"awq", "fp8-blocks", "gptq-order"}, [*FORMS, "fp8-blocks", "mxfp4"]))
def test_steps_with_its_weights_wait_for_nothing(there: PretendDevice, form: str, tmp_path: Path) -> None:
    write(form, tmp_path)
    kernels = set[str]()
    with there:
        model = read_model(tmp_path, torch.bfloat16, str(there.device))
        if form != "mxfp4":
            check_bytes(form, tmp_path, model)
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
    assert stored == (set() if form in UNEVEN else {KERNELS.get(form, "product_kernel")})
    assert engine.generated == 3


@pytest.mark.parametrize("form", by_default({"awq", "gptq-order", "packed-5", "float8-channel"}, FORMS))
def test_a_devices_numbers_are_those_of_the_weights_that_a_file_stands_for(form: str, tmp_path: Path) -> None:
    """In the layout that kernels read, whatever the order of inputs and the size of groups."""
    write(form, tmp_path)
    checkpoint = open_checkpoint(tmp_path).for_device()
    assert checkpoint.has_levels == (form not in UNEVEN) and len(checkpoint.unpacked_types) == (form in UNEVEN)
    tensors, levels = dict(checkpoint.tensors(torch.float32)), dict(checkpoint.levels(torch.float32))
    counted = [one.removesuffix(".offsets") for one in levels if one.endswith(".offsets")]
    assert len(counted) == (0 if form in UNEVEN else 14)
    for one in counted:
        parts = {part: levels.get(f"{one}.{part}") for part in ("numbers", "scales", "offsets", "order")}
        numbers, scales, offsets = (parts[part] for part in ("numbers", "scales", "offsets"))
        assert numbers is not None and scales is not None and offsets is not None
        floats = numbers.dtype == torch.float8_e4m3fn
        found = QuantizedWeights(
            numbers.view(torch.uint8) if floats else numbers, scales, offsets, floats=floats, order=parts["order"]
        )
        stored, wanted = on_device(found, CPU).dense(torch.float32), tensors[one]
        torch.testing.assert_close(found.dense(), wanted, rtol=0, atol=1e-6 * float(wanted.abs().max()))
        # Rounding to bfloat16, which the product does too, changes far more.
        assert float((stored - wanted).norm() / (wanted.bfloat16() - wanted).norm()) < 0.1
