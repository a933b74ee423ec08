# SPDX-License-Identifier: Apache-2.0
"""Steps on a device that is not there, of which other packages compute products, experts and cuts of draws: they are
recorded, wait for nothing, and start none of our kernels for these."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from architectures import hugging_model, read_model
from effort import by_default
from pretend_device import PretendDevice
from quantized_directory import FORMS, LARGE, write_quantized
from step_packages import STRICT, FakeSampling
from tiny import layout_of, sequence

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.draws.filtered_draws import FilteredDraws
from pontil.gpu_ops.products.torch_products import EXPERTS, PRODUCTS
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.models.model import Model

WIDE = LARGE | {"moe_intermediate_size": 64}


@pytest.fixture
def there() -> Iterator[PretendDevice]:
    with PretendDevice() as made:
        yield made


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in STRICT.items():
        monkeypatch.setattr(torch, name, function)


def started(there: PretendDevice, model: Model, fake: FakeSampling | None = None) -> Counter[str]:
    """The kernels and operations that a few steps start, and the recording of these before."""
    layout = layout_of(model)
    limits = DeviceLimits(4, 32, layout.blocks_for(model.config.max_model_len))
    storage = KVStorage(layout, 20, there.device)
    runner = DeviceRunner(model, storage, CudaLink(there.device), limits, AttentionBackend())
    if fake is not None:
        runner.draw = FilteredDraws(fake.package)
    engine = Engine(runner, Scheduler(BlockPool(20), layout, 2, StepBudget(32)))
    with there.recording() as recorded:
        runner.record([one for one in runner.layers.shapes if one[0] <= 4])
    seen = Counter(str(call[0]) for call in recorded.calls)
    for place in range(2):
        engine.add(sequence(f"s{place}", [3] * 20, 4, temperature=0.7, top_p=0.9, top_k=5))
    before = there.driver.replays
    while engine.has_work:
        with there.recording() as tape:
            engine.step()
        seen.update(str(call[0]) for call in tape.calls)
        assert tape.to_device <= 1 and tape.to_host <= 1
    assert engine.generated == 8 and there.driver.replays > before
    return seen


@pytest.mark.parametrize("form", by_default({"float8-channel"}, ["float8-channel", "float8-tensor"]))
def test_torch_multiplies_floats_of_8_bits_and_filters_cut(there: PretendDevice, form: str, tmp_path: Path) -> None:
    write_quantized(hugging_model("llama", LARGE), tmp_path, *FORMS[form])
    model, fake = read_model(tmp_path, torch.bfloat16, str(there.device), by_torch=(PRODUCTS,)), FakeSampling()
    seen = started(there, model, fake)
    assert seen["aten._scaled_mm.default"] and not seen["product_kernel"]
    assert set(fake.calls) == {"top_k_mask_logits", "top_p_renorm_probs"}


def test_experts_are_multiplied_by_torch(there: PretendDevice, tmp_path: Path) -> None:
    hugging_model("qwen3_moe", WIDE).save_pretrained(tmp_path)
    model = read_model(tmp_path, torch.bfloat16, str(there.device), by_torch=(EXPERTS,))
    seen = started(there, model)
    assert seen["aten._grouped_mm.default"] and not seen["gate_up_kernel"] + seen["down_kernel"]


def test_what_is_read_on_the_host_cannot_be_recorded(
    there: PretendDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch does so where it has no kernel for groups."""

    def one_by_one(rows: torch.Tensor, weights: torch.Tensor, *, offs: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows[: offs[0]] @ weights[0] for _ in offs.tolist()])

    hugging_model("qwen3_moe", WIDE).save_pretrained(tmp_path)
    model = read_model(tmp_path, torch.bfloat16, str(there.device), by_torch=(EXPERTS,))
    monkeypatch.setattr(torch, "_grouped_mm", one_by_one)
    with pytest.raises(Exception, match="capture|record|data.dependent|_local_scalar"):
        started(there, model)
