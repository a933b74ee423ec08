# SPDX-License-Identifier: Apache-2.0
"""States of positions as items: the same ones under the same indices, however the positions were computed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_stream import STATES, RecordedStream, recorded_writer, streamed, whole_stream

from pontil.runtime.stages.graph.catalog import PROMPT_UNIT, TALKER_DECODE, TALKER_LAST_PREFILL, TALKER_PREFILL
from pontil.runtime.stages.streams.state_stream import StateStream


def equal(one: RecordedStream, other: RecordedStream, first: int = 0) -> bool:
    indices = [index for index in other.items if index >= first]
    return list(one.items) == indices and all(
        one.items[index][0] == other.items[index][0] and (one.items[index][1] == other.items[index][1]).all()
        for index in indices
    )


@given(st.integers(1, 100), st.integers(0, 6), st.data())
def test_items_do_not_depend_on_chunks(prompt: int, answer: int, data: st.DataObject) -> None:
    end = prompt + answer
    cuts = sorted({0, end, *data.draw(st.lists(st.integers(0, end), max_size=6))})
    spans = [(start, stop - start) for start, stop in zip(cuts, cuts[1:], strict=False)]
    assert equal(streamed(prompt, spans), whole_stream(prompt, answer))


@given(st.integers(1, 70), st.integers(0, 5), st.integers(0, 75))
def test_positions_that_are_computed_again_make_no_items(prompt: int, answer: int, lost: int) -> None:
    done = min(lost, prompt + answer)
    again = streamed(prompt, [(0, done), (0, prompt + answer)] if done else [(0, prompt + answer)])
    assert equal(again, whole_stream(prompt, answer))


def test_a_worker_that_received_the_prompt_goes_on_under_the_same_indices() -> None:
    first, second = streamed(40, [(0, 40)]), streamed(40, [(40, 1), (41, 1)])
    everything = whole_stream(40, 2)
    units = -(-40 // PROMPT_UNIT)
    assert equal(second, everything, units) and set(first.items) == set(range(units))
    assert second.last == everything.last == units + 2 and first.last == units


@pytest.mark.parametrize("answer", [0, 1, 2, 3])
def test_the_producer_names_the_walk_of_each_item(answer: int) -> None:
    walks = [walk for walk, _ in whole_stream(PROMPT_UNIT + 1, answer).items.values()]
    assert walks == [TALKER_PREFILL, TALKER_PREFILL, TALKER_LAST_PREFILL, *[TALKER_DECODE] * 3][: 2 + answer]


def test_it_is_full_when_its_consumer_is_behind_but_not_after_its_end() -> None:
    writer, recorded = recorded_writer("qwen3-omni", STATES)
    stream = StateStream(writer, 3, 2)
    recorded.full = True
    assert stream.is_full
    stream.finish()
    assert not stream.is_full
