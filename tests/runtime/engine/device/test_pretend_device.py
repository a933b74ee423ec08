# SPDX-License-Identifier: Apache-2.0
"""Whole steps of small models on a device that is not there: nothing waits for it, and a recorded step could be started
again."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from architectures import hugging_model, read_model
from effort import by_default
from pretend_device import DeviceTape, HostTensorUsed, PretendDevice
from tiny import layout_of, sequence
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.triton.launch import launch
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.models.model import Model

EDITED: dict[str, object] = {
    "temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.2, "logit_bias": ((5, 3.0),), "bad_token_ids": (7,),
    "logprobs": 3,
}  # fmt: skip
ALLOWED: dict[str, object] = {"allowed_token_ids": (1, 2, 0), "prompt_logprobs": 2, "temperature": 1.0}


# The first has what all decoders have, the second experts too. What neither changes is tried with one of them.
of_llama, of_experts = (
    pytest.mark.parametrize("path", by_default({chosen}, ["llama", "qwen3_moe"]), indirect=True)
    for chosen in ("llama", "qwen3_moe")
)


@dataclass
class Site:
    """An engine on the pretend device."""

    there: PretendDevice
    engine: Engine
    runner: DeviceRunner

    def step(self) -> DeviceTape:
        with self.there.recording() as tape:
            self.engine.step()
        return tape


@pytest.fixture(scope="module")
def there() -> PretendDevice:
    return PretendDevice()


@pytest.fixture(scope="module", params=["llama", "qwen3_moe"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp(request.param)
    hugging_model(request.param).save_pretrained(made)
    return made


def site_of(there: PretendDevice, model: Model, blocks: int = 100, seats: int = 8) -> Site:
    layout = layout_of(model)
    link = CudaLink(there.device)
    storage = KVStorage(layout, blocks, there.device)
    scheduler = Scheduler(BlockPool(blocks), layout, seats, StepBudget(64))
    limits = DeviceLimits(seats + 32, 64, layout.blocks_for(model.config.max_model_len))
    runner = DeviceRunner(model, storage, link, limits, AttentionBackend())
    return Site(there, Engine(runner, scheduler), runner)


@pytest.fixture(scope="module")
def model(there: PretendDevice, path: Path) -> Model:
    with there:
        made: Model = read_model(path, device=str(there.device))
        return made


@pytest.fixture
def site(there: PretendDevice, model: Model) -> Iterator[Site]:
    with there:
        yield site_of(there, model)


@of_experts
def test_a_step_waits_for_nothing_and_makes_one_copy_each_way(site: Site) -> None:
    for place in range(3):
        site.engine.add(sequence(f"s{place}", [3] * (17 + place), 6))
    while site.engine.has_work:
        tape = site.step()
        # A call that only collects the last step starts nothing.
        launched = len(tape.kernels) > 0
        assert (tape.to_device, tape.to_host) == (launched, launched)
        assert "draw_kernel" in tape.kernels or not launched
    assert site.engine.generated == 18


@of_experts
def test_two_decode_steps_of_one_bucket_start_the_same_at_the_same_addresses(site: Site) -> None:
    for place in range(3):
        site.engine.add(sequence(f"s{place}", [3] * (17 + place), 8))
    for _ in range(3):
        site.step()
    first, second = site.step(), site.step()
    assert len(first.kernels) > 2 and first.kernels == second.kernels
    assert first.calls == second.calls


@of_llama
@pytest.mark.parametrize("settings", [EDITED, ALLOWED], ids=["edited", "allowed"])
def test_edits_and_logprobs_wait_for_nothing(site: Site, settings: dict[str, object]) -> None:
    """But for penalties, whose counts follow the layers in a copy of their own once the last token is known."""
    one = sequence("a", [3] * 70, 4, **settings)
    site.engine.add(one)
    while site.engine.has_work:
        late = one.ahead.count > 0 and "repetition_penalty" in settings
        tape = site.step()
        launched = len(tape.kernels) > 0
        assert (tape.to_device, tape.to_host) == (launched * (1 + late), launched)
    assert len(one.output) == 4 and len(one.record.logprobs) == (4 if "logprobs" in settings else 0)


@of_experts
def test_recorded_decode_steps_are_started_again_and_their_memory_is_known(site: Site) -> None:
    site.runner.record(site.runner.layers.shapes)
    shapes, held = len(site.runner.layers.captured.steps), site.runner.layers.captured.bytes
    assert shapes == len(site.runner.layers.generated_rows) * len(site.runner.layers.widths) and held > 0
    site.engine.add(sequence("a", [3] * 20, 5))
    site.step()
    before = site.there.driver.replays
    while site.engine.has_work:
        tape = site.step()
        launched = len(tape.kernels)
        assert tape.kernels == ["draw_kernel"][:launched] and (tape.to_device, tape.to_host) == (launched, launched)
    assert site.there.driver.replays == before + 4


Fault = Callable[[Tensor], object]


@of_llama
@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        (lambda hidden: hidden.sum().item(), DataDependentOutputException),
        (lambda hidden: hidden[:, 0].tolist(), DataDependentOutputException),
        (lambda hidden: bool((hidden > 0).any()), DataDependentOutputException),
        (lambda hidden: hidden[hidden > 0], DynamicOutputShapeException),
        (lambda hidden: hidden.nonzero(), DynamicOutputShapeException),
        (lambda hidden: hidden + torch.ones(hidden.shape), HostTensorUsed),
        (lambda hidden: launch("faulty", (1,), hidden, torch.ones(3)), HostTensorUsed),
    ],
    ids=["item", "tolist", "any", "boolean-mask", "nonzero", "host-tensor", "host-tensor-in-kernel"],
)
def test_a_step_that_waits_is_caught(
    site: Site, fault: Fault, caught: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = site.runner.model.forward

    def faulty(*arguments: object) -> Tensor:
        hidden = forward(*arguments)  # type: ignore[arg-type]
        fault(hidden)
        return hidden

    monkeypatch.setattr(site.runner.model, "forward", faulty)
    site.engine.add(sequence("a", [3] * 20, 5))
    with pytest.raises(caught):
        site.step()


@of_llama
def test_a_second_copy_and_another_address_are_caught(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.engine.add(sequence("a", [3] * 20, 9))
    site.step()
    forward = site.runner.model.forward
    mine = [torch.zeros(4, device=site.there.device) for _ in range(4)]

    def faulty(ids: Tensor, *others: object) -> Tensor:
        ids.to("cpu")
        torch.zeros(3, dtype=torch.int32).to(site.there.device)
        mine.pop().add_(1)
        return forward(ids, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(site.runner.model, "forward", faulty)
    first, second = site.step(), site.step()
    assert (first.to_device, first.to_host) == (2, 2)
    assert first.calls != second.calls
