# SPDX-License-Identifier: Apache-2.0
"""Sequences that other stages drive or follow: rows that are embeddings, states of positions, and rests."""

from collections.abc import Sequence as Row

import pytest
import torch
from host_device import device_engine
from tiny import Rig, build, drain, reference, rig, sequence
from torch import Tensor

from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.sequences.streamed import StageStreams
from pontil.runtime.models.model import Model

PROMPT = [3, 17, 40, 8, 25, 60, 11, 9, 2, 77]
TOKENS = 12
DEVICE = "device"
of_each_runner = pytest.mark.parametrize("kind", ["plain", DEVICE])


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


class EmbeddedIds:
    """Rows that are the embeddings of a sequence's own ids, and arrive late: `arrived` of them so far."""

    def __init__(self, model: Model, one: Sequence, arrived: int = 0) -> None:
        self.model, self.sequence, self.arrived = model, one, arrived
        self.frames: list[list[int]] = []
        self.next_index = 0

    def can_resume(self, frames: Row[list[int]], next_index: int) -> bool:
        raise AssertionError("nothing is handed over here")

    def resume(self, frames: Row[list[int]], next_index: int) -> None:
        raise AssertionError("nothing is handed over here")

    def ready(self, start: int, stop: int) -> int:
        return max(0, min(stop, self.arrived) - start)

    def rows(self, start: int, count: int) -> Tensor:
        ids = [self.sequence.token(position) for position in range(start, start + count)]
        return self.model.embed(torch.tensor(ids))

    def take_frame(self, frame: list[int]) -> None:
        self.frames.append(frame)


class RecordedStates:
    """Receives states, by position. It is full while it has as many as `most`."""

    def __init__(self, layers: int = 1, most: int = 1 << 30) -> None:
        self.layers, self.most = layers, most
        self.taken: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def is_full(self) -> bool:
        return len(self.taken) >= self.most

    def take(self, start: int, embedding: Tensor, hidden: Tensor) -> None:
        for place in range(len(embedding)):
            self.taken[start + place] = embedding[place].clone(), hidden[place].clone()


class TwoCodes:
    """Completes frames with a code that follows from the id and its place."""

    def frames(self, rows: Row[tuple[int, int, int, bool]], hidden: Tensor) -> list[list[int]]:
        assert len(rows) == len(hidden)
        return [[token, 1000 + position - len(PROMPT)] for _, position, token, _ in rows]


def site(model: Model, kind: str, budget: int = 256) -> Rig:
    """An engine with the plain runner, or with that of devices and steps that are recorded."""
    made = rig(model, budget=budget)
    if kind == DEVICE:
        engine, runner = device_engine(model, budget=budget, seats=4)
        runner.record(runner.layers.shapes)
        made.engine, made.runner = engine, runner
    return made


def expected(model: Model) -> list[int]:
    made = rig(model)
    made.engine.add(sequence("plain", PROMPT, TOKENS))
    return drain(made.engine)["plain"]


def driven(made: Rig, model: Model, arrived: int) -> tuple[Sequence, EmbeddedIds]:
    one = sequence("driven", PROMPT, TOKENS)
    # Its ids are placeholders, by which no other sequence may find its blocks or wait for them.
    one.prefix.salt = "driven"
    rows = EmbeddedIds(model, one, arrived)
    one.streams = StageStreams(inputs=rows)
    made.engine.add(one)
    return one, rows


@of_each_runner
@pytest.mark.parametrize("budget", [3, 64])
def test_embeddings_of_ids_give_the_tokens_of_the_ids(model: Model, budget: int, kind: str) -> None:
    made = site(model, kind, budget)
    one, _ = driven(made, model, 1 << 20)
    assert drain(made.engine)["driven"] == expected(model) == one.output


def test_a_sequence_rests_until_its_row_is_there_and_others_go_on(model: Model) -> None:
    made = rig(model)
    one, rows = driven(made, model, 0)
    made.engine.add(sequence("plain", PROMPT, TOKENS))
    assert drain(made.engine)["plain"] == expected(model)
    assert not made.engine.has_work and one.computed == 0
    for arrived in range(len(PROMPT), len(PROMPT) + TOKENS):
        rows.arrived = arrived
        while made.engine.has_work:
            made.engine.step()
        assert len(one.output) == arrived - len(PROMPT) + 1
    assert one.output == expected(model)


def test_rows_are_computed_as_they_come(model: Model) -> None:
    """E13: the other stage makes more only once these count as consumed."""
    made = rig(model)
    one, rows = driven(made, model, 0)
    for arrived in range(1, len(PROMPT) + TOKENS):
        rows.arrived = arrived
        while made.engine.has_work:
            made.engine.step()
        assert one.computed == arrived
    assert one.output == expected(model)


def test_rows_that_are_no_ids_are_not_penalized(model: Model) -> None:
    """The placeholders of a prompt's ids say nothing about what was said."""
    found = []
    for ids in (PROMPT, [7] * len(PROMPT)):
        made = rig(model)
        one = sequence("driven", ids, TOKENS, repetition_penalty=1.9)
        rows = EmbeddedIds(model, one, 1 << 20)
        one.streams = StageStreams(inputs=rows)
        rows.sequence = sequence("ids", PROMPT, TOKENS)
        rows.sequence.output = one.output
        made.engine.add(one)
        found.append(drain(made.engine)["driven"])
    assert found[0] == found[1]


@of_each_runner
def test_a_frame_counts_as_one_token(model: Model, kind: str) -> None:
    """A1, E5: of several codes a step, the first is the token."""
    made = site(model, kind)
    made.runner.frame_maker = TwoCodes()
    one, rows = driven(made, model, 1 << 20)
    outputs = []
    while made.engine.has_work:
        outputs += made.engine.step()
    assert sum(output.count for output in outputs) == made.engine.generated == TOKENS
    assert rows.frames == [[token, 1000 + index] for index, token in enumerate(one.output)]
    assert [frame for output in outputs for frame in output.frames] == rows.frames


@of_each_runner
@pytest.mark.parametrize("budget", [3, 64])
def test_every_position_is_stated_once_computed(model: Model, budget: int, kind: str) -> None:
    made = site(model, kind, budget)
    one = sequence("stated", PROMPT, TOKENS)
    states = RecordedStates()
    one.streams = StageStreams(states=states)
    made.engine.add(one)
    assert drain(made.engine)["stated"] == expected(model)
    assert list(states.taken) == list(range(len(PROMPT) + TOKENS - 1))
    alone = rig(model)
    again = sequence("again", PROMPT, TOKENS)
    same = RecordedStates()
    again.streams = StageStreams(states=same)
    alone.engine.add(again)
    drain(alone.engine)
    for position, (embedding, hidden) in states.taken.items():
        assert (embedding == model.embed(torch.tensor([one.token(position)]))[0]).all()
        torch.testing.assert_close(hidden, same.taken[position][1], rtol=0, atol=1e-5 if kind == DEVICE else 0)


def test_a_sequence_rests_while_its_consumer_is_behind(model: Model) -> None:
    """E13: back-pressure stops the producer, and it goes on where it was."""
    made = rig(model)
    one = sequence("stated", PROMPT, TOKENS)
    states = RecordedStates(most=len(PROMPT) + 3)
    one.streams = StageStreams(states=states)
    made.engine.add(one)
    while made.engine.has_work:
        made.engine.step()
    assert len(states.taken) == len(PROMPT) + 3 and one.finish is None
    states.most = 1 << 30
    assert drain(made.engine)["stated"] == expected(model)
