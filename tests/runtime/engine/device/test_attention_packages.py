# SPDX-License-Identifier: Apache-2.0
"""Steps on a device that is not there, whose attention other packages compute: recorded steps are started again, and
what a package plans on the host before them waits for nothing that it need not."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from architectures import hugging_model, read_model
from attention_packages import FakeFlashAttention, FakeFlashInfer
from pretend_device import DeviceTape, PretendDevice
from strict_driver import DriverFault
from tiny import layout_of, sequence
from torch import Tensor

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.attention_backends.flash_attention import FlashAttentionBackend
from pontil.gpu_ops.attention_backends.flashinfer import CudaHost, FlashInferBackend, Mark
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler

SEATS = 3


class PretendHost(CudaHost):
    def __init__(self, there: PretendDevice) -> None:
        super().__init__(there.device)
        self.there = there

    def numbers(self, count: int) -> Tensor:
        return self.there.pinned_words(count)


class HastyHost(PretendHost):
    """A host that writes before its last copy is over: a fault."""

    def mark(self) -> Mark:
        return SimpleNamespace(wait=lambda: None)


class PackageSite:
    def __init__(self, there: PretendDevice, path: Path) -> None:
        self.there = there
        self.model = read_model(path, device=str(there.device))
        self.layout = replace(layout_of(self.model), dtype="bfloat16")
        self.limits = DeviceLimits(SEATS + 32, 64, self.layout.blocks_for(self.model.config.max_model_len))

    def use(self, backend: AttentionBackend) -> None:
        storage = KVStorage(self.layout, 60, self.there.device)
        scheduler = Scheduler(BlockPool(60), self.layout, SEATS, StepBudget(64))
        link = CudaLink(self.there.device)
        self.runner = DeviceRunner(self.model, storage, link, self.limits, backend)
        self.engine = Engine(self.runner, scheduler)
        for place in range(SEATS):
            self.engine.add(sequence(f"s{place}", [3] * (17 + place), 6))

    def flashinfer(self, host: type[PretendHost]) -> FlashInferBackend:
        package = FakeFlashInfer(self.there.pinned_words)
        width = self.limits.blocks + 4
        return FlashInferBackend(package, self.there.device, host(self.there), self.limits.generated, width)

    def record(self) -> None:
        """Record the steps of as few rows as there are sequences."""
        self.runner.record([one for one in self.runner.layers.shapes if one[0] <= 4])

    def steps(self) -> Iterator[DeviceTape]:
        while self.engine.has_work:
            with self.there.recording() as tape:
                self.engine.step()
            yield tape


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    hugging_model("llama").save_pretrained(made)
    return made


@pytest.fixture
def site(path: Path) -> Iterator[PackageSite]:
    with PretendDevice() as there:
        yield PackageSite(there, path)


def test_flash_attention_is_recorded_and_waits_for_nothing(site: PackageSite) -> None:
    site.use(FlashAttentionBackend(FakeFlashAttention().flash_attn_with_kvcache))
    site.record()
    before = site.there.driver.replays
    for tape in site.steps():
        launched = len(tape.kernels) > 0
        assert (tape.to_device, tape.to_host) == (launched, launched)
    assert site.engine.generated == 18 and site.there.driver.replays == before + 6


def test_flashinfer_is_planned_before_each_start_of_what_was_recorded(site: PackageSite) -> None:
    backend = site.flashinfer(PretendHost)
    site.use(backend)
    site.record()
    before, plans = site.there.driver.replays, backend.package.plans
    for tape in site.steps():
        assert tape.to_host == (len(tape.kernels) > 0)
    # A plan for each of two tiles of prompts, and one for each step that decodes, of the only kind of layers.
    assert site.engine.generated == 18 and site.there.driver.replays == before + 6
    assert backend.package.plans == plans + 2 + 6


def test_memory_of_the_host_that_is_still_copied_is_not_written(site: PackageSite) -> None:
    site.use(site.flashinfer(HastyHost))
    site.record()
    with pytest.raises(DriverFault, match="still"):
        for _ in site.steps():
            pass


def test_shared_pages_are_enough_for_the_largest_shape(site: PackageSite) -> None:
    backend = site.flashinfer(PretendHost)
    site.use(backend)
    largest = site.runner.layers.shapes[0]
    site.runner.record([largest])
    assert len(backend.memory.pages) >= largest[0] * largest[1] and set(backend.generated) == {largest}
