# SPDX-License-Identifier: Apache-2.0
"""Measure what the host does in a step: the real engine over a device, or kernels, that take no time."""

import cProfile
import pstats
import statistics
import sys
import time
from collections import abc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

import app  # noqa: F401
from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.collectives.communicator import SingleRank
from pontil.gpu_ops.parameters.draws import DeviceDraws, RankedRows
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import Arrival, HostWords, RecordedStep, Words
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.runner.model_runner import ModelRunner
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence
from pontil.runtime.models.adapters import NO_ADAPTERS
from pontil.runtime.models.model import Model
from pontil.runtime.sampling_params import SamplingParams

VOCABULARY, WIDTH, BLOCK, MOST_ROWS = 1024, 8, 16, 512
CPU = torch.device("cpu")


class InstantLink:
    """A device that has done everything already: nothing is copied."""

    device = CPU

    def host_words(self, count: int) -> HostWords:
        made = torch.zeros(count, dtype=torch.int32)
        return HostWords(made.numpy(), made)

    def send(self, source: HostWords, target: Tensor) -> None:
        return

    def fetch(self, source: Tensor, target: HostWords) -> Arrival:
        return InstantArrival(target.words[: len(source)])

    def settle(self) -> None:
        return

    def capture(self, run: Callable[[], Tensor], pool: Any) -> RecordedStep:
        return RecordedStep(lambda: None, lambda: None, run(), pool)

    def reserved(self) -> int:
        return 0


class InstantArrival:
    def __init__(self, words: Words) -> None:
        self.words = words

    def wait(self) -> Words:
        return self.words


class InstantModel:
    """Gives every row the same states and logits, which were there before."""

    def __init__(self, kernels: object | None) -> None:
        self.config = SimpleNamespace(vocab_size=VOCABULARY, hidden_size=1)
        self.dtype, self.device, self.kernels = torch.float32, CPU, kernels
        self.communicator, self.linears, self.adapters = SingleRank(), list[object](), NO_ADAPTERS
        self.states, self.scores = torch.zeros(MOST_ROWS, WIDTH), torch.zeros(MOST_ROWS, VOCABULARY)
        self.highest = torch.zeros(MOST_ROWS, dtype=torch.int64)

    def forward(self, ids: Tensor, positions: Tensor, attend: object, *more: object) -> Tensor:
        return self.states[: len(ids)]

    def forward_fused(self, inputs: Tensor, tile: object, rows: abc.Sequence[int], *more: object) -> Tensor:
        return self.states[: len(rows)]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.scores[: len(hidden)]

    def ranked_logits(self, hidden: Tensor) -> tuple[Tensor, RankedRows]:
        return self.scores[: len(hidden)], RankedRows(self.highest[: len(hidden)])


def nothing_drawn(logits: Tensor, draws: DeviceDraws, out: Tensor, kinds: object) -> None:
    """Leave the ids as they are: 0."""


def open_engine(kind: str, rows: int, most: int) -> Engine:
    """Return an engine for so many sequences of at most `most` tokens."""
    layout = KVLayout(BLOCK, 1, 1, 8, "float32", kind == "cpu")
    blocks = rows * (layout.blocks_for(most) + 1) + 1
    scheduler = Scheduler(BlockPool(blocks), layout, rows, StepBudget(MOST_ROWS))
    model, storage = cast(Model, InstantModel(object() if kind == "cpu" else None)), KVStorage(layout, blocks, CPU)
    if kind == "cpu":
        return Engine(ModelRunner(model, storage), scheduler)
    limits = DeviceLimits(rows, MOST_ROWS, layout.blocks_for(most))
    runner = DeviceRunner(model, storage, InstantLink(), limits, AttentionBackend())
    runner.draw = nothing_drawn
    runner.record(runner.layers.shapes)
    return Engine(runner, scheduler)


def begin(engine: Engine, kind: str, rows: int, context: int, answer: int) -> None:
    """Add sequences, and compute their prompts. On a device they draw at random: there the draws cost the host only
    their numbers."""
    for number in range(rows):
        params = SamplingParams(max_tokens=answer, seed=number, temperature=float(kind == "device"), ignore_eos=True)
        prompt = [1 + number % 1000] * context
        engine.add(Sequence(str(number), prompt, params, frozenset()))
    while any(one.remaining > 1 + one.ahead.count for one in engine.unfinished):
        engine.step()
    for _ in range(3):
        engine.step()


def measure_host(kind: str, rows: int, context: int, rounds: int, profile: bool = False) -> dict[str, Any]:
    """Return the milliseconds of a step of so many rows, least and median: by the clock and of this thread; and the
    calls of Python functions for each row, counted apart."""
    steps = 2 * rounds + 40
    engine = open_engine(kind, rows, context + steps + 8)
    begin(engine, kind, rows, context, steps + 8)
    walls, own = list[float](), list[float]()
    for _ in range(rounds):
        start, used = time.perf_counter(), time.thread_time()
        outputs = engine.step()
        own.append(time.thread_time() - used)
        walls.append(time.perf_counter() - start)
        assert sum(one.count for one in outputs) == rows
    calls = counted_calls(engine, 8)
    if profile:
        profiled(engine, min(rounds, 20))
    for name in list(engine.sequences):
        engine.end(name, FinishReason.ABORTED)
    return {
        "runner": kind, "rows": rows, "ms": least_and_median(walls), "cpu_ms": least_and_median(own),
        "calls_a_row": round(calls / rows, 1),
    }  # fmt: skip


def least_and_median(seconds: list[float]) -> list[float]:
    return [round(1000 * one, 3) for one in (min(seconds), statistics.median(seconds))]


def counted_calls(engine: Engine, steps: int) -> float:
    """Return how many Python functions a step calls, generators' turns included."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        for _ in range(steps):
            engine.step()
    finally:
        sys.setprofile(None)
    return count / steps


def profiled(engine: Engine, steps: int) -> None:
    watch = cProfile.Profile()
    watch.enable()
    for _ in range(steps):
        engine.step()
    watch.disable()
    pstats.Stats(watch, stream=sys.stderr).sort_stats("tottime").print_stats(45)
