# SPDX-License-Identifier: Apache-2.0
"""Random graphs: any declaration that is accepted runs as it says, whatever arrives when and whoever dies. The world
has the same graphs with a proxy and workers (scripts/random_graphs.py)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from effort import examples
from graph_play import play_seed

from pontil.runtime.stages.graph.partition import GraphPartition
from pontil.runtime.stages.graph.producer import StreamProducer
from pontil.runtime.stages.graph.stream_buffer import Chunk, StreamBuffer
from pontil.runtime.stages.nodes.node import NodeInput, WalkValues
from pontil.runtime.stages.worker import walk_executor
from pontil.runtime.stages.worker.open_task import OpenTask

EACH = 20


@pytest.mark.parametrize("first", range(1, examples(200, 10_000), EACH))
def test_a_random_graph_gives_what_its_plain_run_gives(first: int) -> None:  # E1, E2, E3, E5, E8, E9, E10, E11, E13
    wrong = {seed: found for seed in range(first, first + EACH) if (found := play_seed(seed))}
    assert not wrong


def ends_early(part: Any, run: Any, given: NodeInput) -> Any:
    """Run no round of a loop but the first."""
    return (yield from walk_executor.run_part(part.body, run, given))


def full_and_final(buffer: StreamBuffer) -> Chunk | None:
    """Pop a chunk that is the final one if the end is known by now."""
    chunk = POP(buffer)
    if chunk is not None and chunk.items and chunk.after.index == buffer.ends_at and chunk.walk == buffer.last_walk:
        buffer.taken = replace(chunk.after, finished=True)
        return replace(chunk, after=buffer.taken)
    return chunk


def without_stop(made: WalkValues, values: Any = (), stops: bool = False, goes_on: bool = False) -> None:
    object.__setattr__(made, "values", dict(values))
    object.__setattr__(made, "stops", False)
    object.__setattr__(made, "goes_on", goes_on)


def too_early(producer: StreamProducer, walk: str, emitted: Any) -> dict[str, str]:
    producer.tracked = {**producer.tracked, **ASKED(producer, walk, emitted)}
    return ASKED(producer, walk, emitted)


def any_of_them(task: OpenTask) -> bool:
    return TAKE(task) or bool(task.chunks)


POP, TAKE, ASKED = StreamBuffer.pop, OpenTask.take_chunks, StreamProducer.asked
FAULTS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "a walk is not followed": (GraphPartition, "following", lambda part, walk: part.initial),
    "a loop has one round": (walk_executor, "run_in_rounds", ends_early),
    "a chunk is final when the end happens to be known": (StreamBuffer, "pop", full_and_final),
    "a part is not given what was made before it": (NodeInput, "after", lambda given, made: given),
    "a loop is not stopped": (WalkValues, "__init__", without_stop),
    "a tracked walk changes too early": (StreamProducer, "asked", too_early),
    "a pass does not wait for all of its streams": (OpenTask, "take_chunks", any_of_them),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_executor_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, other = FAULTS[name]
    monkeypatch.setattr(where, what, other)
    monkeypatch.setattr(walk_executor, "MOST_ROUNDS", 50)
    assert any(play_seed(seed) for seed in range(1, 60))
