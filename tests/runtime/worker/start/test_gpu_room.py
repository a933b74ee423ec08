# SPDX-License-Identifier: Apache-2.0
"""The memory of a GPU that is left for KV, with a meter in the GPU's place."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pretend_device import PretendDevice
from tiny import build, layout_of, reference
from tiny_adapters import random_layers, write_adapter

from pontil.gpu_ops.collectives.communicator import SingleRank
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.device.device_runner import DeviceRunner, Round
from pontil.runtime.engine.device.runner_choice import make_runner, record_steps
from pontil.runtime.engine.runner.model_runner import NONE, ModelRunner
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch, Tile
from pontil.runtime.engine.sequences.known_adapters import KnownAdapters
from pontil.runtime.errors import AdapterError, ModelError
from pontil.runtime.models.adapters import ModelAdapters
from pontil.runtime.models.model import Model
from pontil.runtime.worker.adapters.adapter_reader import make_adapter
from pontil.runtime.worker.start.gpu_room import measure_room, room_of_adapters

MIB = 1 << 20


@dataclass
class ScriptedMeter:
    """A GPU of 1,000 MiB of which 300 are taken. A step takes a MiB for each of its rows."""

    rows: list[int]
    total: int = 1000 * MIB
    free: int = 700 * MIB
    from_here: int = 0

    @property
    def peak(self) -> int:
        return max(self.rows[self.from_here :]) * MIB

    def reset(self) -> None:
        self.from_here = len(self.rows)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """A model so small that threads would wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield build(reference())
    torch.set_num_threads(before)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each step that is computed."""
    seen, run = list[int](), ModelRunner.run

    def counting(runner: ModelRunner, batch: Batch) -> list[Sampled]:
        seen.append(sum(span.count for span in batch.spans))
        return run(runner, batch)

    monkeypatch.setattr(ModelRunner, "run", counting)
    return seen


def config(**settings: object) -> WorkerConfig:
    given: dict[str, object] = {"max_num_batched_tokens": 100, "max_num_seqs": 6} | settings
    return WorkerConfig("w", "mixed", "cuda:0", (0,), "m", "m", "ipc:///c", "ipc:///p", **given)  # type: ignore[arg-type]


def test_a_gpu_has_longer_steps_of_more_sequences_unless_told() -> None:
    given: dict[str, object] = {"max_num_batched_tokens": None, "max_num_seqs": None}
    sizes = [replace(config(**given), device=device).step_size for device in ("cpu", "cuda:0")]
    assert [(one.seats, one.tokens) for one in sizes] == [(64, 256), (256, 8192)]
    assert replace(config(), device="cpu").step_size == config().step_size


def test_kv_gets_what_weights_and_the_largest_step_leave(model: Model, rows: list[int]) -> None:
    room = measure_room(config(), model, layout_of(model), ScriptedMeter(rows))
    assert max(rows) >= 100 and 6 in rows
    assert (room.allowed, room.taken, room.step, room.recorded) == (900 * MIB, 300 * MIB, max(rows) * MIB, 0)
    assert room.kv == (600 - max(rows)) * MIB


def test_adapters_that_may_be_loaded_later_keep_their_room(model: Model, rows: list[int]) -> None:
    known = KnownAdapters(50 * MIB)
    known.learn("a", "aa" * 32, "a")
    known.load("aa" * 32, 20 * MIB)
    settings = config(adapter=("a=/a",), adapter_memory=50 * MIB)
    # The rest of the limit, and one more.
    assert room_of_adapters(settings, known) == 50 * MIB
    assert room_of_adapters(config(adapter=("a=/a",)), known) == room_of_adapters(config(), KnownAdapters()) == 0
    room = measure_room(settings, model, layout_of(model), ScriptedMeter(rows), 50 * MIB)
    assert room.kv == (550 - max(rows)) * MIB and "further adapters 50 MiB" in room.parts


def test_an_adapter_without_room_is_refused_in_words(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(adapters: ModelAdapters, layers: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    directory = str(write_adapter(tmp_path / "a", random_layers(model, 1)))
    assert make_adapter(model.adapters, directory, "the adapter a")[1].nbytes > 0
    monkeypatch.setattr(ModelAdapters, "made", fail)
    with pytest.raises(AdapterError, match="the adapter a does not fit .* give --adapter-memory"):
        make_adapter(model.adapters, directory, "the adapter a")


def test_more_sequences_than_tokens_of_a_step_are_run_together(model: Model, rows: list[int]) -> None:
    room = measure_room(config(max_num_batched_tokens=8, max_num_seqs=40), model, layout_of(model), ScriptedMeter(rows))
    assert 40 in rows and room.step == max(rows) * MIB


def test_a_step_is_never_longer_than_the_model_allows(model: Model, rows: list[int]) -> None:
    longest = model.config.max_model_len
    meter = ScriptedMeter(rows, total=1 << 40, free=1 << 40)
    measure_room(config(max_num_batched_tokens=10 * longest), model, layout_of(model), meter)
    assert longest - 1 <= max(rows) <= longest + 6


def test_a_step_that_ends_a_request_for_lack_of_memory_is_no_measure(
    model: Model, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(runner: ModelRunner, tile: Tile) -> list[Sampled]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ModelRunner, "run_tile", fail)
    with pytest.raises(ModelError, match="does not fit the memory of cuda:0 .* lower --max-num-batched-tokens"):
        measure_room(config(), model, layout_of(model), ScriptedMeter(rows))


@dataclass
class DeviceMeter:
    """A GPU of 1,000 MiB of which 300 are taken, and a MiB more for each recorded step and 50 for the first. A step
    takes a MiB for each of its rows."""

    there: PretendDevice
    rows: list[int]
    total: int = 1000 * MIB

    @property
    def free(self) -> int:
        return (700 - self.there.driver.captures - 50 * (self.there.driver.captures > 0)) * MIB

    @property
    def peak(self) -> int:
        return max(self.rows) * MIB

    def reset(self) -> None: ...


def test_a_device_runs_its_own_runner_and_records_some_steps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The estimate of recorded steps, of which a few are recorded, is what all of them take."""
    rows, start = list[int](), DeviceRunner.start

    def counting(runner: DeviceRunner, batch: Batch, rounds: list[Round]) -> Any:
        rows.append(sum(span.count for span in batch.spans))
        return start(runner, batch, rounds)

    monkeypatch.setattr(DeviceRunner, "start", counting)
    hugging = reference()
    with PretendDevice() as there, there.recording(), caplog.at_level(logging.INFO):
        model = build(hugging, device=str(there.device))
        layout, settings = layout_of(model), config(max_num_seqs=24)
        room = measure_room(settings, model, layout, DeviceMeter(there, rows))
        some = there.driver.captures
        assert not there.allocated
        storage = KVStorage(layout, 4, there.device)
        record_steps(make_runner(settings, model, storage, model.config.max_model_len, NONE, None))
        recorded = there.driver.captures - some
    assert max(rows) >= 100 and 24 in rows and some < recorded
    assert (room.taken, room.step) == (300 * MIB, max(rows) * MIB)
    assert room.recorded == (recorded + 50) * MIB
    assert room.kv == (600 - max(rows) - 50 - recorded) * MIB
    assert f"recorded steps {room.recorded >> 20} MiB, KV {room.kv >> 20} MiB, which together are the 900 MiB" in (
        caplog.text
    )


@pytest.mark.parametrize("share", [0.3, 0.4])
def test_a_gpu_without_room_is_refused_with_the_parts_named(model: Model, rows: list[int], share: float) -> None:
    with pytest.raises(ModelError, match=f"--gpu-memory-share {share:g} allows .* 300 MiB, the largest step 10. MiB"):
        measure_room(config(gpu_memory_share=share), model, layout_of(model), ScriptedMeter(rows))


class SecondRank(SingleRank):
    """A rank of two, the other of which has come everywhere."""

    size = 2


def test_a_rank_whose_memory_does_not_suffice_says_so_and_does_not_begin_anew(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would wait for the step that it began, and say that it did not come."""
    tried = list[Tile]()

    def fail(runner: ModelRunner, tile: Tile) -> list[Sampled]:
        tried.append(tile)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ModelRunner, "run_tile", fail)
    monkeypatch.setattr(model, "communicator", SecondRank())
    with pytest.raises(ModelError, match="does not fit the memory of cuda:0 .* lower --max-num-batched-tokens"):
        measure_room(config(), model, layout_of(model), ScriptedMeter([]))
    assert len(tried) == 1
