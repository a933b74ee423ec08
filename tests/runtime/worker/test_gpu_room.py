# SPDX-License-Identifier: Apache-2.0
"""The memory of a GPU that is left for KV, with a meter in the GPU's place."""

from dataclasses import dataclass

import pytest
from tiny import build, layout_of, reference

from pontil.runtime.config import WorkerConfig
from pontil.runtime.engine.batch import Batch
from pontil.runtime.engine.model_runner import ModelRunner
from pontil.runtime.engine.sampler import Sampled
from pontil.runtime.errors import ModelError
from pontil.runtime.models.model import Model
from pontil.runtime.worker.gpu_room import measure_room

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
def model() -> Model:
    made: Model = build(reference())
    return made


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


def test_kv_gets_what_weights_and_the_largest_step_leave(model: Model, rows: list[int]) -> None:
    room = measure_room(config(), model, layout_of(model), ScriptedMeter(rows))
    assert max(rows) >= 100 and 6 in rows
    assert (room.allowed, room.taken, room.step) == (900 * MIB, 300 * MIB, max(rows) * MIB)
    assert room.kv == (600 - max(rows)) * MIB


def test_more_sequences_than_tokens_of_a_step_are_run_together(model: Model, rows: list[int]) -> None:
    room = measure_room(config(max_num_batched_tokens=8, max_num_seqs=40), model, layout_of(model), ScriptedMeter(rows))
    assert 40 in rows and room.step == max(rows) * MIB


def test_a_step_is_never_longer_than_the_model_allows(model: Model, rows: list[int]) -> None:
    longest = model.config.max_model_len
    meter = ScriptedMeter(rows, total=1 << 40, free=1 << 40)
    measure_room(config(max_num_batched_tokens=10 * longest), model, layout_of(model), meter)
    assert longest - 1 <= max(rows) <= longest + 6


@pytest.mark.parametrize("share", [0.3, 0.4])
def test_a_gpu_without_room_is_refused_with_the_parts_named(model: Model, rows: list[int], share: float) -> None:
    with pytest.raises(ModelError, match=f"--gpu-memory-share {share:g} allows .* 300 MiB, the largest step 10. MiB"):
        measure_room(config(gpu_memory_share=share), model, layout_of(model), ScriptedMeter(rows))
