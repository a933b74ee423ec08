# SPDX-License-Identifier: Apache-2.0
"""Rows of several adapters in the steps of a device."""

from pathlib import Path

import pytest
import torch
from architectures import ROUND_SIZES, hugging_model, read_model
from host_device import HostLink, device_engine
from pretend_device import PretendDevice
from tiny import VOCAB, drain, layout_of, rig, sequence
from tiny_adapters import random_layers, with_adapter

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.parameters.adapters import MOST_RANK, NO_ADAPTER, ROW_TILE
from pontil.gpu_ops.products import device_adapters
from pontil.gpu_ops.products.adapters import RowAdapters, row_tiles
from pontil.gpu_ops.products.device_adapters import DeviceAdapters
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.loaders.facts import adapter_layers
from pontil.runtime.models.model import Model

NUMBERS = (1, NO_ADAPTER, 0, 0, 1, NO_ADAPTER, 1)
# The positions from which on they have their adapters: two within a tile, one in the prompt's last position.
STARTS = (0, 0, 0, 37, 100, 0, 89)


def company() -> list[Sequence]:
    """Prompts of which one takes several tiles of rows, beside answers of all adapters."""
    generator = torch.Generator().manual_seed(7)
    lengths = (1, 15, 16, 70, 130, 33, 90)
    made = list[Sequence]()
    for place, (length, number, start) in enumerate(zip(lengths, NUMBERS, STARTS, strict=True)):
        ids = torch.randint(0, VOCAB, (length,), generator=generator).tolist()
        one = sequence(f"s{place}", ids, 9 + place, temperature=1.3, seed=place)
        made.append(with_adapter(one, number, start))
    return made


def answers(engine: Engine, members: list[Sequence]) -> dict[str, list[int]]:
    for one in members:
        engine.add(one)
    return drain(engine)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "qwen3_5_text", "bamba"])
def test_recorded_steps_compute_each_row_with_its_own_adapter(name: str, tmp_path: Path) -> None:
    hugging_model(name).save_pretrained(tmp_path)
    model = read_model(tmp_path)
    for number, rank in enumerate((4, 7)):
        model.adapters.made(random_layers(model, number + 1, rank)).put(number)
    expected = answers(rig(model, budget=64).engine, company())
    link = HostLink()
    engine, runner = device_engine(model, budget=64, seats=8, link=link)
    runner.record(runner.layers.shapes)
    assert answers(engine, company()) == expected and link.replayed > 5
    plain = answers(rig(model, budget=64).engine, without())
    assert [name for name, ids in plain.items() if ids == expected[name]] == ["s1", "s5"]


def without() -> list[Sequence]:
    """The same prompts, of which none has an adapter."""
    made = company()
    for one in made:
        one.prefix = sequence("plain", [1]).prefix
    return made


@pytest.mark.parametrize("rows", [1, 7, 60, 200])
def test_every_row_of_an_adapter_is_in_one_tile_of_its_own(rows: int) -> None:
    numbers = torch.randint(-1, 4, (rows,), generator=torch.Generator().manual_seed(rows)).tolist()
    order, tiles = row_tiles(numbers, rows + 3, 4)
    found = list[tuple[int, int]]()
    for first, count, number in tiles.tolist():
        assert count <= ROW_TILE
        found += [(row, number) for row in order[first : first + count].tolist()]
    assert sorted(found) == [(row, number) for row, number in enumerate(numbers) if number != NO_ADAPTER]
    # The number of tiles is known before the rows are.
    empty, none = row_tiles([], rows + 3, 4)
    assert empty.shape == order.shape and none.shape == tiles.shape and not none.any()


def test_rows_are_found_again_by_the_reference() -> None:
    rows = RowAdapters()
    rows.choose([2, -1, 0, *[2] * 20])
    assert {number: own.tolist() for number, own in rows.groups} == {0: [2], 2: [0, *range(3, 23)]}
    assert rows.of_tile(25).tolist() == [2, -1, 0, *[2] * 20, -1, -1] and rows.of_tile(3).tolist() == [2, -1, 0]
    rows.choose([])
    assert rows.groups == [] and rows.of_tile(2).tolist() == [-1, -1]


def test_a_device_has_room_for_every_rank_that_is_read() -> None:
    assert MOST_RANK == adapter_layers.MOST_RANK


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> PretendDevice:
    made = PretendDevice()
    monkeypatch.setattr(device_adapters, "address_of", made.places)
    return made


def device_model(path: Path, there: PretendDevice, name: str = "llama") -> Model:
    hugging_model(name, ROUND_SIZES).save_pretrained(path)
    model: Model = read_model(path, torch.bfloat16, device=str(there.device), adapters=True)
    return model


def engine_of(model: Model, there: PretendDevice) -> tuple[Engine, DeviceRunner]:
    layout, blocks = layout_of(model), 100
    storage = KVStorage(layout, blocks, there.device)
    limits = DeviceLimits(40, 64, layout.blocks_for(model.config.max_model_len) * layout.kv_pages)
    runner = DeviceRunner(model, storage, CudaLink(there.device), limits, AttentionBackend())
    return Engine(runner, Scheduler(BlockPool(blocks), layout, 8, StepBudget(64))), runner


@pytest.mark.parametrize(("name", "products"), [("llama", 12), ("qwen3_5_text", 12), ("bamba", 12)])
def test_every_product_of_a_recorded_step_has_two_kernels_more(
    name: str, products: int, there: PretendDevice, tmp_path: Path
) -> None:
    with there:
        model = device_model(tmp_path, there, name)
        _, runner = engine_of(model, there)
        with there.recording() as tape:
            runner.record(runner.layers.shapes[-3:])
        assert [tape.kernels.count(f"{one}_kernel") for one in ("shrink", "expand")] == [3 * products] * 2


def test_adapters_come_and_go_between_recorded_steps(there: PretendDevice, tmp_path: Path) -> None:
    with there:
        model = device_model(tmp_path, there)
        engine, runner = engine_of(model, there)
        runner.record(runner.layers.shapes[-3:])
        for number in range(2):
            model.adapters.made(random_layers(model, number + 1, rank=5 + number)).put(number)
        engine.add(with_adapter(sequence("a", [3] * 20, 6), 1))
        engine.step()
        replays = there.driver.replays
        while engine.has_work:
            model.adapters.remove(0)
            model.adapters.made(random_layers(model, 1)).put(0)
            with there.recording() as tape:
                engine.step()
            launched = len(tape.kernels)
            assert tape.kernels == ["draw_kernel"][:launched] and (tape.to_device, tape.to_host) == (launched, launched)
        assert there.driver.replays == replays + 5


def test_experts_have_two_kernels_more_in_recorded_steps(there: PretendDevice, tmp_path: Path) -> None:
    """One for each product of all experts of a layer, whatever adapters there are; nothing is read meanwhile."""
    with there:
        model = device_model(tmp_path, there, "qwen3_moe")
        engine, runner = engine_of(model, there)
        with there.recording() as tape:
            runner.record(runner.layers.shapes[-1:])
        assert tape.kernels.count("shrink_experts_kernel") == 2 * model.config.num_layers
        made = model.adapters.made(random_layers(model, 1))
        made.put(0)
        assert made.nbytes == sum(one.numbered[0].nbytes for one in held_by(model) if 0 in one.numbered)
        engine.add(with_adapter(sequence("a", [3] * 20, 6), 0))
        engine.step()
        replays = there.driver.replays
        while engine.has_work:
            engine.step()
        assert there.driver.replays == replays + 5


def held_by(model: Model) -> list[DeviceAdapters]:
    return [one.held for one in model.adapters.products if isinstance(one.held, DeviceAdapters)]


def test_steps_of_a_worker_without_adapters_start_nothing_for_them(there: PretendDevice, tmp_path: Path) -> None:
    hugging_model("llama", ROUND_SIZES).save_pretrained(tmp_path)
    with there:
        model = read_model(tmp_path, torch.bfloat16, device=str(there.device))
        engine, _ = engine_of(model, there)
        engine.add(sequence("a", [3] * 20, 2))
        with there.recording() as tape:
            while engine.has_work:
                engine.step()
        assert model.adapters.products == () and tape.kernels and "shrink_kernel" not in tape.kernels
