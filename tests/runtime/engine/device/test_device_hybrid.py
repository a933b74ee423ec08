# SPDX-License-Identifier: Apache-2.0
"""Models with recurrent layers in the steps of a device."""

from pathlib import Path

import pytest
import torch
from architectures import ROUND_SIZES, VOCAB, hugging_model, read_model
from effort import by_default
from host_device import HostLink, device_engine
from pretend_device import PretendDevice
from tiny import drain, layout_of, rig, sequence

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.gpu_ops.kv.states import TileStates, states_on
from pontil.gpu_ops.parameters.recurrent import StateTile
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.prefix import STATE_TOKENS
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.device.tile_inputs import row_sections, state_sections, table
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.tiles.plan import TilePlan

MODELS = ("qwen3_5_text", "bamba")


@pytest.fixture(scope="module", params=by_default({"qwen3_5_text"}, MODELS))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp(request.param)
    hugging_model(request.param, ROUND_SIZES | {"max_position_embeddings": 4096}).save_pretrained(made)
    return made


def company() -> list[Sequence]:
    """Prompts that end inside a block, at its end and behind it, two that begin alike, and one of three answers."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, VOCAB, (600,), generator=generator).tolist()
    prompts = (ids[:250], ids[40 : 40 + STATE_TOKENS], ids, [5])
    made = [sequence(f"s{place}", prompt, 12, temperature=1.1, seed=place) for place, prompt in enumerate(prompts)]
    return [*made, sequence("n", ids[:270], 6, temperature=1.5, n=3)]


def answers(engine: Engine) -> dict[str, list[int]]:
    found = dict[str, list[int]]()
    for part in (company()[:3], company()[3:]):
        for one in part:
            engine.add(one)
        found |= drain(engine)
    return found


def test_recorded_steps_read_and_write_the_states_of_blocks(path: Path) -> None:
    model = read_model(path)
    expected = answers(rig(model, blocks=40).engine)
    link = HostLink()
    engine, runner = device_engine(model, blocks=12, seats=4, link=link)
    runner.record(runner.layers.shapes[-6:])
    assert answers(engine) == expected and link.replayed > 10


def test_steps_of_states_wait_for_nothing(path: Path) -> None:
    there = PretendDevice()
    with there:
        model = read_model(path, torch.bfloat16, device=str(there.device))
        layout, blocks = layout_of(model), 8
        pages = layout.blocks_for(model.config.max_model_len) * layout.kv_pages
        storage = KVStorage(layout, blocks, there.device)
        scheduler = Scheduler(BlockPool(blocks), layout, 4, StepBudget(256))
        runner = DeviceRunner(model, storage, CudaLink(there.device), DeviceLimits(36, 256, pages), AttentionBackend())
        with there.recording() as tape:
            runner.record(runner.layers.shapes[-4:])
        recurrent = model.config.recurrent
        assert recurrent is not None and tape.kernels.count("recur_kernel") == 4 * len(recurrent.layers)
        engine = Engine(runner, scheduler)
        engine.add(sequence("a", [3] * 300, 5))
        replays = there.driver.replays
        while engine.has_work:
            with there.recording() as tape:
                engine.step()
            launched = len(tape.kernels) > 0
            assert (tape.to_device, tape.to_host) == (launched, launched)
        assert there.driver.replays == replays + 4


@pytest.mark.parametrize("page_size", [16, 64])
def test_rows_are_in_the_pages_of_their_blocks(page_size: int) -> None:
    layout = KVLayout(STATE_TOKENS, 1, 1, 32, "float32", page_tokens=page_size, state_numbers=5000)
    spans = [TileSpan(300, 400, [7, 2, 5]), TileSpan(0, 3, [4])]
    plan = TilePlan(False, [1] * 403, spans, [], [], [])
    pages = [layout.pages_of(span.blocks, span.start + span.count) for span in spans]
    _, positions, slots = row_sections(plan, 404, layout)
    owners = [0] * 400 + [1] * 3
    expected = [
        pages[owner][at // page_size] * page_size + at % page_size
        for owner, at in zip(owners, positions.tolist(), strict=False)
    ]
    assert slots.tolist() == [*expected, -1]
    found = table(spans, layout)
    assert [row[: len(own)].tolist() for row, own in zip(found, pages, strict=True)] == pages
    # No wider than a sequence's tables, whatever its blocks are.
    assert found.shape[1] == 3 * layout.kv_pages


def test_the_reference_finds_the_spans_of_a_tile_again() -> None:
    spans = [TileSpan(0, 3, [4]), TileSpan(6, 12, [1, 2, 3]), TileSpan(16, 1, [5, 6, 7])]
    numbers, owners = state_sections(spans, 20, 5, 8)
    assert owners.tolist() == [0] * 3 + [1] * 12 + [2] + [-1] * 4
    pool = torch.arange(8 * 2, dtype=torch.float32).view(8, 2)
    states = states_on(pool, StateTile(torch.from_numpy(numbers), torch.from_numpy(owners), 8))
    assert isinstance(states, TileStates)
    # The states before a span, and of each of its blocks.
    found = [(rows.stop - rows.start, state.tolist()) for rows, state in states.pieces(0, 2)]
    assert found == [(3, [0, 0]), (2, [2, 3]), (8, [2, 3]), (2, [2, 3]), (1, [12, 13])]
    # Sizes follow from the numbers of rows and spans alone.
    assert [one.shape for one in state_sections([], 20, 5, 8)] == [numbers.shape, owners.shape]
