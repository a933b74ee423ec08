# SPDX-License-Identifier: Apache-2.0
"""Steps of a device make the tokens and logprobs of the plain runner, with one copy to it and one from it a step. The
host stands for the device, so that numbers are real."""

import numpy as np
import pytest
import torch
from effort import by_default
from host_device import HostLink, device_engine
from tiny import VOCAB, build, drain, reference, rig, sequence

from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.runtime.engine.device.buckets import bucket_of, buckets, widths
from pontil.runtime.engine.device.results import ResultBuffer
from pontil.runtime.engine.device.step_buffer import Array, StepBuffer
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.sequences.token_logprobs import TokenLogprobs
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.models.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


def prompt(length: int, seed: int = 5) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


SETTINGS: list[dict[str, object]] = [
    {},
    {"temperature": 1.3, "top_p": 0.95, "top_k": 50, "seed": 3, "top_logits": 8},
    {"temperature": 0.8, "min_p": 0.05, "logprobs": 3, "seed": 4},
    {"presence_penalty": 0.7, "frequency_penalty": -0.4, "repetition_penalty": 1.2, "logprobs": 0},
    {"logit_bias": ((5, 3.0), (9, -4.0)), "bad_token_ids": (7, 8), "temperature": 1.0, "prompt_logprobs": 2},
    {"allowed_token_ids": (1, 2, 3, 50), "temperature": 2.0, "n": 3, "logprobs": 2, "top_logits": 5},
    {"logprobs": 1, "logprob_token_ids": (4, 90), "temperature": 0.5},
]


def company() -> list[Sequence]:
    lengths = (1, 15, 16, 70, 130, 33, 90)
    return [
        sequence(f"s{place}", prompt(length, place), 9 + place, **settings)
        for place, (length, settings) in enumerate(zip(lengths, SETTINGS, strict=True))
    ]


def run(engine: Engine) -> tuple[dict[str, list[int]], list[Sequence]]:
    members = company()
    for one in members:
        engine.add(one)
    return drain(engine), members


def nearly(ours: list[TokenLogprobs], theirs: list[TokenLogprobs]) -> bool:
    for one, other in zip(ours, theirs, strict=True):
        assert [entry[0::2] for entry in one.entries] == [entry[0::2] for entry in other.entries]
        assert len(one.top_logits) == len(other.top_logits) and one.top_logits[:4] == other.top_logits[:4]
        assert [entry[1] for entry in one.entries] == pytest.approx([entry[1] for entry in other.entries], abs=1e-4)
    return True


def test_tokens_and_logprobs_are_those_of_the_plain_runner(model: Model) -> None:
    expected, theirs = run(rig(model, budget=64).engine)
    link = HostLink()
    engine, _ = device_engine(model, budget=64, link=link)
    found, ours = run(engine)
    assert found == expected
    for one, other in zip(ours, theirs, strict=True):
        assert nearly(one.record.logprobs, other.record.logprobs)
        assert [made is None for made in one.record.prompt_logprobs] == [
            made is None for made in other.record.prompt_logprobs
        ]
        assert nearly(one.record.prompt_logprobs[1:], other.record.prompt_logprobs[1:])  # type: ignore[arg-type]


@pytest.mark.parametrize("cells", by_default({"fp8"}, ["int8", "fp8"]))
def test_cells_of_8_bits_are_read_by_recorded_steps_and_copied_to_choices(model: Model, cells: str) -> None:
    plain = rig(model, blocks=9, block_size=8, cells=cells).engine
    engine, runner = device_engine(model, blocks=9, block_size=8, seats=4, cells=cells)
    runner.record(runner.layers.shapes)
    for one in (plain, engine):
        one.add(sequence("a", prompt(19), 9, n=3, temperature=1.5))
        one.add(sequence("b", prompt(9), 20))
    assert drain(engine) == drain(plain) and engine.scheduler.preemptions


def test_recorded_steps_drafts_and_few_blocks_change_nothing(model: Model) -> None:
    words = [3, 17, 40, 8] * 6
    plain = rig(model, blocks=9, block_size=8).engine
    link = HostLink()
    engine, runner = device_engine(model, blocks=9, block_size=8, seats=4, link=link)
    runner.record(runner.layers.shapes)
    assert link.captures == len(runner.layers.captured.steps) and runner.layers.captured.bytes == 1000 * link.captures
    drafting, _ = device_engine(model, drafts=4)
    for one in (plain, engine, drafting):
        for place in range(3):
            one.add(sequence(f"s{place}", words[: 18 + place], 20, temperature=0.0 if place else 0.9))
    expected = drain(plain)
    assert drain(engine) == expected and link.replayed > 10 and engine.scheduler.preemptions
    assert drain(drafting) == expected and drafting.drafted


def test_sections_that_do_not_fit_are_copied_apart() -> None:
    link = HostLink()
    buffer = StepBuffer(link, 16)
    sections: list[Array] = [
        np.arange(3, dtype=np.int32),
        np.arange(2, dtype=np.float64),
        np.arange(20, dtype=np.int64),
    ]
    for _ in range(3):
        sent = buffer.send(sections)
        assert [one.tolist() for one in sent] == [one.tolist() for one in sections]
        assert sent[0].data_ptr() == buffer.memory.data_ptr() and sent[1].data_ptr() == buffer.memory[4:].data_ptr()
    assert link.sent == 6


def test_results_that_do_not_fit_come_in_one_copy_too() -> None:
    link = HostLink()
    buffer = ResultBuffer(link, 2, 8)
    for count in (3, 30):
        buffer.begin()
        buffer.clear(2)
        buffer.ids.copy_(torch.tensor([7, 8]))
        places = buffer.add([torch.arange(count).float(), torch.ones(2, 1, dtype=torch.int32)])
        words = buffer.fetch().wait()
        assert words[:2].tolist() == [7, 8] and places[0].read(words).tolist() == list(range(count))
        assert places[1].read(words).tolist() == [[1], [1]]
    assert link.fetched == 2 and buffer.last.tolist() == [7, 8]


def test_buckets_end_with_the_most() -> None:
    assert buckets(1) == (1,) and buckets(64) == (1, 2, 4, 8, 16, 24, 32, 48, 64)
    assert buckets(100)[-3:] == (64, 96, 100) and bucket_of(33, buckets(100)) == 48
    assert widths(3) == (4,) and widths(2048) == (32, 256, 2048)


def test_a_recorded_step_behind_another_tile_reads_its_own_numbers(model: Model) -> None:
    """Answers of preempted sequences are computed again in tiles of generated positions. Here one is full, and
    the position behind it is the only one that draws."""
    plain = rig(model, blocks=12, block_size=8, seats=2).engine
    engine, runner = device_engine(model, blocks=12, block_size=8, seats=2)
    runner.record(runner.layers.shapes)
    for one in (plain, engine):
        for place in range(2):
            one.add(sequence(f"s{place}", prompt(6, place), 60))
    expected = drain(plain)
    assert drain(engine) == expected and engine.scheduler.preemptions


def test_the_query_tiles_of_many_short_prompts_have_room(model: Model) -> None:
    """Prompts of which all but 17 positions were found begin and end in different query tiles."""
    _, runner = device_engine(model, seats=96, budget=96 * 17)
    spans = [TileSpan(48, 17, [0] * 5) for _ in range(96)]
    plan = TilePlan(False, [0] * len(spans) * 17, spans, [], [], [])
    tiles = runner.layers.free_sections(plan)[1]
    assert (tiles[:, 2] > 0).sum() == 2 * len(spans)
