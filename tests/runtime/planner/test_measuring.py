# SPDX-License-Identifier: Apache-2.0
"""The measurement of steps: a profile of an engine whose steps take known times predicts these times."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorded_profile import milliseconds

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.runner.runner import Launched
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.planner.device_profile import Points, StepTimes, WorkerSizes
from pontil.runtime.planner.measuring import PASSES, StepMeter
from pontil.runtime.planner.step_costs import StepCosts, StepWork
from pontil.runtime.worker.start.assembly import equip

ROUNDS = 3
PULLS = ((1.0, 0.2), (16.0, 1.0))
TOKEN = 5


class TimedRunner:
    """A Runner that computes nothing, and whose steps take what is known, so many `times` as long, and twice that until
    a time."""

    keeps_states, answers_are_found = False, True

    def __init__(self) -> None:
        self.now, self.times, self.slow_until = 0.0, 1.0, 0.0

    def run(self, batch: Batch) -> list[Sampled]:
        times = self.times * (2.0 if self.now < self.slow_until else 1.0)
        self.now += times * milliseconds(StepWork.of(batch.spans)) / 1e3
        return [
            Sampled(span.sequence, choice, [TOKEN], 1, [], 0)
            for span in batch.spans
            if span.samples
            for choice in span.sequence.choices
        ]

    def launch(self, batch: Batch) -> Launched:
        sampled = self.run(batch)
        return Launched(lambda: sampled)

    def beside(self, storage: KVStorage) -> "TimedRunner":
        raise AssertionError("nobody takes a second pool")


SIZES = WorkerSizes(2048, 16, 4096, 1024, 1 << 20, 16, 256, 64)


def measured(
    sizes: WorkerSizes, slow: frozenset[int] = frozenset(), slow_seconds: float = 0.0
) -> tuple[StepTimes, list[str]]:
    """Measure an engine of this size, and note what is done in order. In the `slow` passes all takes twice as long, and
    so it does in so many seconds from the begin of each."""
    runner, told = TimedRunner(), list[str]()
    config = WorkerConfig(
        name="mixed:0", role="mixed", device="cpu", cores=(0,), model="m", served_model_name="m", control="inproc://c",
        peer_endpoint="inproc://p", version="0", keep_kv=False, block_size=sizes.block_tokens,
        max_num_seqs=sizes.seats, max_num_batched_tokens=sizes.step_tokens,
        max_interleaved_tokens=sizes.interleaved_tokens or None, prefix_caching=False,
    )  # fmt: skip
    layout, pool = KVLayout(sizes.block_tokens, 1, 1, 1, "float32"), BlockPool(sizes.blocks)
    engine = equip(config, runner, KVStorage(layout, sizes.blocks, torch.device("cpu")), pool)
    shape = SimpleNamespace(vocab_size=100, max_model_len=sizes.max_model_len)
    machine: Any = SimpleNamespace(engine=engine, config=shape)

    def tell(what: str) -> None:
        runner.times = 2.0 if told.count("pass") in slow else 1.0
        runner.slow_until = runner.now + slow_seconds
        told.append("pass")

    meter = StepMeter(machine, sizes, ROUNDS, lambda: runner.now, tell)
    return meter.measure(lambda: told.append("between")), told


def works(points: Points) -> list[StepWork]:
    return [StepWork(int(rows), read, int(tokens), more) for rows, read, tokens, more, _ in points]


def test_every_point_is_the_time_of_its_step_and_both_kinds_are_there() -> None:
    times, told = measured(SIZES)
    points = times.steps
    assert told == ["pass", *["between", "pass"] * (PASSES - 1)]
    for work, (*_, found) in zip(works(points), points, strict=True):
        assert found == pytest.approx(milliseconds(work), rel=1e-3)
    both = {(work.rows, work.tokens) for work in works(points) if work.rows and work.tokens}
    assert both == {(rows, tokens) for rows in (1, 4) for tokens in (16, 64)}
    assert {work.rows for work in works(points) if not work.tokens} == {1, 2, 4, 8, 16}


def test_a_profile_predicts_the_steps_of_the_machine_that_it_was_made_of() -> None:
    times, _ = measured(SIZES)
    costs = StepCosts(replace(times, pulls=PULLS))
    for work in (StepWork(3, 900.0, 0, 0.0), StepWork(0, 0.0, 100, 50 * 100.0), StepWork(2, 400.0, 40, 40 * 300.0)):
        assert costs.step(work) * 1e3 == pytest.approx(milliseconds(work), rel=0.02)


def test_a_pass_in_which_the_machine_is_slower_counts_as_one_of_all() -> None:
    usual, _ = measured(SIZES)
    slower, _ = measured(SIZES, frozenset({1}))
    assert works(usual.steps) == works(slower.steps)
    for (*_, one), (*_, other) in zip(usual.steps, slower.steps, strict=True):
        assert other == pytest.approx(one * (PASSES + 1) / PASSES, rel=1e-3)


def test_a_slow_moment_is_one_of_four_in_a_pass_for_short_steps() -> None:
    usual, _ = measured(SIZES)
    slower, _ = measured(SIZES, slow_seconds=0.1)
    found = [
        (work, round(other / one, 2))
        for work, (*_, one), (*_, other) in zip(works(usual.steps), usual.steps, slower.steps, strict=True)
    ]
    assert found[0] == (works(usual.steps)[0], 1.25) and found[0][0].rows == 1
    assert found[-1][1] == 1.0


@pytest.mark.parametrize("sizes", [replace(SIZES, interleaved_tokens=256), replace(SIZES, max_model_len=64, seats=1)])
def test_sizes_in_which_little_fits_are_measured_too(sizes: WorkerSizes) -> None:
    """A prompt beside rows may need a second step, where it is as long as one, and a worker of one seat has no rows
    beside a prompt."""
    times, _ = measured(sizes)
    points = times.steps
    StepCosts(replace(times, pulls=PULLS))
    both = [work for work in works(points) if work.rows and work.tokens]
    assert bool(both) is (sizes.seats > 1)
    for work, (*_, found) in zip(works(points), points, strict=True):
        assert found == pytest.approx(milliseconds(work), rel=1e-3)
