# SPDX-License-Identifier: Apache-2.0
"""Rows of a sequence that another stage drives: the same ones for one worker, for two, and after a restart."""

from collections.abc import Collection, Sequence

import pytest
import torch
from recorded_stream import STATES, RecordedStream, whole_stream
from torch import Tensor

from pontil.runtime.stages.graph.catalog import (
    GRAPHS,
    PROMPT_UNIT,
    TALKER_DECODE,
    TALKER_LAST_PREFILL,
    TALKER_PREFILL,
)
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer, StreamFault
from pontil.runtime.stages.worker.stream_rows import StreamRows

PROMPT, TAIL = 40, 3
UNITS = -(-PROMPT // PROMPT_UNIT)


class NumberBuilder:
    """Rows of one number each: positions of the prompt, the first of the answer, and for each step its text's position
    and its frame. With `texts` in the prompt, its last positions are the first of the text."""

    prompt_rows = PROMPT + TAIL

    def __init__(self, texts: int = 0) -> None:
        self.begins_in_prompt = texts > 0
        self.arrived, self.given, self.texts = 0, 0, texts
        self.items: list[float] = []
        self.ended = False

    def push(self, states: Tensor) -> None:
        for row in states[:, 0, 0]:
            self.items += [float(row)] if self.arrived >= PROMPT - self.texts else []
            self.arrived += 1

    def end(self) -> None:
        assert not self.ended and self.arrived >= PROMPT
        self.ended = True

    def is_behind(self, frame: Sequence[int], next_index: int) -> bool:
        return next_index - UNITS in (0, 1) and len(frame) == 2

    def resume(self, next_index: int) -> None:
        self.items = [-9.0] * (next_index - UNITS)
        self.arrived = PROMPT + len(self.items)

    def take_prompt(self) -> list[Tensor]:
        first = self.item(0)
        known = min(self.arrived, PROMPT) + (TAIL if first is not None and self.arrived >= PROMPT else 0)
        rows = [float(place) if place < PROMPT else first for place in range(self.given, known)]
        self.given = known
        return [torch.tensor([row]) for row in rows]

    def item(self, number: int) -> float | None:
        if number < len(self.items):
            return self.items[number]
        return -1.0 - (number - len(self.items)) if self.ended else None

    def step(self, number: int, frame: Sequence[int]) -> Tensor | None:
        text = self.item(number + 1)
        return None if text is None else torch.tensor([1000.0 * frame[0] + text])


class Opened:
    """Opens inputs that get the whole stream at once; `buffers` are those opened."""

    def __init__(self, stream: RecordedStream) -> None:
        self.stream, self.buffers = stream, list[StreamBuffer]()

    def __call__(self, hosted: Collection[str] | None) -> StreamBuffer:
        buffer = StreamBuffer(GRAPHS["qwen3-omni"].connection(STATES), TALKER_DECODE, hosted)
        self.stream.fill(buffer)
        self.buffers.append(buffer)
        return buffer


FRAMES = [[number + 1, 7] for number in range(6)]


def expected(answer: int, texts: int = 0) -> list[float]:
    said = [float(place) for place in range(PROMPT - texts, PROMPT + answer)]
    items = [*said, *(-1.0 - number for number in range(8))]
    rows = [*map(float, range(PROMPT)), *[items[0]] * TAIL]
    return rows + [1000.0 * frame[0] + item for frame, item in zip(FRAMES, items[1:], strict=False)]


def numbers(rows: StreamRows, start: int, stop: int) -> list[float]:
    assert rows.ready(start, stop) == stop - start
    return [float(row[0]) for row in rows.rows(start, stop - start)]


@pytest.mark.parametrize("answer", [0, 1, 2, 5])
def test_one_worker_takes_the_prompt_and_a_row_for_each_step(answer: int) -> None:
    rows = StreamRows(NumberBuilder, Opened(whole_stream(PROMPT, answer)))
    length = NumberBuilder.prompt_rows
    found = numbers(rows, 0, length)
    assert rows.ready(0, length + 1) == length, "the row of a step needs its frame"
    for step, frame in enumerate(FRAMES):
        rows.take_frame(frame)
        found += numbers(rows, length + step, length + step + 1)
        rows.record(length + step + 1)
    assert found == expected(answer)
    assert rows.buffer.next_index == rows.buffer.ends_at


@pytest.mark.parametrize("answer", [0, 1, 2, 5])
def test_two_workers_take_the_items_of_their_own_walks(answer: int) -> None:
    stream, length = whole_stream(PROMPT, answer), NumberBuilder.prompt_rows
    first = StreamRows(NumberBuilder, Opened(stream), hosted=(TALKER_PREFILL, TALKER_LAST_PREFILL))
    found = numbers(first, 0, length)
    second = StreamRows(NumberBuilder, Opened(stream), hosted=(TALKER_DECODE,), receives=True)
    second.resume([FRAMES[0]], first.next_index)
    for frame in FRAMES[1:]:
        second.take_frame(frame)
    found += numbers(second, length, length + len(FRAMES))
    assert found == expected(answer)


def test_a_worker_that_loses_the_prompt_asks_for_all_items() -> None:
    opened = Opened(whole_stream(PROMPT, 3))
    rows = StreamRows(NumberBuilder, opened, hosted=(TALKER_DECODE,), receives=True)
    rows.resume(FRAMES, -(-PROMPT // PROMPT_UNIT) + 1)
    assert numbers(rows, PROMPT + TAIL, PROMPT + TAIL + 2) == expected(3)[PROMPT + TAIL : PROMPT + TAIL + 2]
    assert numbers(rows, 0, PROMPT + TAIL + 6) == expected(3)
    assert [buffer.hosted for buffer in opened.buffers] == [frozenset({TALKER_DECODE}), None]


def test_items_count_as_consumed_when_their_step_has_run() -> None:
    rows = StreamRows(NumberBuilder, Opened(whole_stream(PROMPT, 3)), frames=FRAMES)
    units = -(-PROMPT // PROMPT_UNIT)
    assert rows.ready(0, PROMPT + TAIL + 2) == PROMPT + TAIL + 2
    assert rows.buffer.next_index == units
    rows.record(PROMPT + TAIL)
    assert rows.buffer.next_index == units + 1
    rows.record(PROMPT + TAIL + 1)
    assert rows.buffer.next_index == units + 2


@pytest.mark.parametrize("window", [1, 2, 64])
def test_a_next_attempt_asks_for_no_more_items_than_a_window(window: int) -> None:
    """E13: the frames that it knows may need more of them than the other stage keeps ahead."""
    stream, sent = whole_stream(PROMPT, len(FRAMES) + 1), 0
    rows = StreamRows(NumberBuilder, Opened(RecordedStream()), frames=FRAMES)
    computed, length = 0, NumberBuilder.prompt_rows + len(FRAMES)
    while computed < length:
        due = rows.ready(computed, length)
        if not due:
            assert sent < rows.buffer.next_index + window, "it waits for what is not sent"
            rows.buffer.put(sent, *stream.items[sent])
            sent += 1
        computed += due
        rows.record(computed)
    assert [float(row[0]) for row in rows.rows(0, length)] == expected(len(FRAMES) + 1)


@pytest.mark.parametrize("receives", [False, True])
def test_a_text_that_begins_in_the_prompt_needs_the_prompts_states(receives: bool) -> None:
    opened = Opened(whole_stream(PROMPT, 2))
    hosted = (TALKER_DECODE,) if receives else None
    rows = StreamRows(lambda: NumberBuilder(texts=3), opened, FRAMES, hosted, receives)
    if receives:
        rows.resume([FRAMES[0]], UNITS)
    assert numbers(rows, 0, PROMPT + TAIL + 6) == expected(2, texts=3)
    assert opened.buffers[0].hosted is None


def second_worker(opened: Opened) -> StreamRows:
    return StreamRows(NumberBuilder, opened, hosted=(TALKER_DECODE,), receives=True)


@pytest.mark.parametrize(
    ("frames", "next_index"),
    [
        ([[1, 7]], UNITS - 1), ([[1, 7]], UNITS + 2), ([[1, 7]], -1), ([[1, 7]], 1 << 62), ([[1]], UNITS),
        ([], UNITS), ([[1, 7], [2, 7]], UNITS),
    ],
)  # fmt: skip
def test_a_handoff_that_no_prompt_can_have_is_refused(frames: list[list[int]], next_index: int) -> None:
    rows = second_worker(Opened(whole_stream(PROMPT, 3)))
    assert rows.can_resume([FRAMES[0]], UNITS) and rows.can_resume([FRAMES[0]], UNITS + 1)
    assert not rows.can_resume(frames, next_index)


def test_a_handoff_beyond_the_end_of_the_stream_is_a_fault_of_its_request() -> None:
    """The end of the stream, and the handoff, come from different workers."""
    rows = second_worker(Opened(whole_stream(PROMPT, 0)))
    rows.resume([FRAMES[0]], UNITS + 1)
    assert not rows.ready(PROMPT + TAIL, PROMPT + TAIL + 1)
    assert "ends before" in str(rows.fault)


def test_an_item_that_its_builder_refuses_is_a_fault_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(builder: NumberBuilder, states: Tensor) -> None:
        raise StreamFault("not the states of a position")

    monkeypatch.setattr(NumberBuilder, "push", refuse)
    rows = StreamRows(NumberBuilder, Opened(whole_stream(PROMPT, 1)))
    assert not rows.ready(0, 4) and rows.fault == "not the states of a position"
    monkeypatch.undo()
    assert not rows.ready(0, 4), "it does not go on"
