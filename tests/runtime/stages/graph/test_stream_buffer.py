# SPDX-License-Identifier: Apache-2.0
"""The consumer's end of a stream, case by case. Random orders are in test_stream_order.py."""

import pytest
from speech_graph import FRAMES, STATES, stream

from pontil.runtime.stages.graph.policies import Fixed, LeftContext, SlidingWindow
from pontil.runtime.stages.graph.stream_buffer import Chunk, StreamBuffer, StreamFault, StreamPosition


def drained(buffer: StreamBuffer) -> list[Chunk]:
    """Pop and run every chunk that is ready."""
    chunks = list[Chunk]()
    while (chunk := buffer.pop()) is not None:
        buffer.record(chunk)
        chunks.append(chunk)
    return chunks


def talker() -> StreamBuffer:
    return StreamBuffer(STATES, "talker_decode")


def shown(chunks: list[Chunk]) -> list[tuple[str | None, tuple[object, ...], bool]]:
    return [(chunk.walk, chunk.items, chunk.final) for chunk in chunks]


def test_an_answer_of_one_state_ends_in_the_terminal_walk() -> None:  # E11
    """The second state, which would have moved the Talker on, never comes; the end of the stream does it."""
    buffer = talker()
    buffer.put(0, "talker_prefill", "prompt")
    buffer.put(1, "talker_last_prefill", "first")
    assert shown(drained(buffer)) == [
        ("talker_prefill", ("prompt",), False),
        ("talker_last_prefill", ("first",), False),
    ]
    buffer.end(2)
    (last,) = drained(buffer)
    assert shown([last]) == [("talker_decode", (), True)]
    assert buffer.finished and buffer.pop() is None


@pytest.mark.parametrize("states", [0, 1, 2])
@pytest.mark.parametrize("early", [True, False])
def test_short_answers_end(states: int, early: bool) -> None:  # E11
    """The end is known before anything is popped, or after everything was."""
    walks = ["talker_prefill", "talker_last_prefill", "talker_decode"][: states + 1]
    buffer = talker()
    for index, walk in enumerate(walks):
        buffer.put(index, walk, index)
    before = [] if early else drained(buffer)
    buffer.end(len(walks))
    chunks = before + drained(buffer)
    assert [item for chunk in chunks for item in chunk.items] == list(range(len(walks)))
    assert [chunk.final for chunk in chunks].count(True) == 1
    assert chunks[-1].final and chunks[-1].walk == "talker_decode"


def test_a_stream_without_items_has_an_empty_final_chunk() -> None:  # E11
    buffer = StreamBuffer(FRAMES, "code2wav_chunk")
    assert buffer.pop() is None
    buffer.end(0)
    (chunk,) = drained(buffer)
    assert shown([chunk]) == [("code2wav_chunk", (), True)]


def test_finality_is_that_of_the_walk_after_the_transition() -> None:  # E10
    """The last item is for a walk that is not the terminal one, so its chunk is not the final one; a rule that looked
    at the walk before would end the partition with it."""
    buffer = StreamBuffer(stream(Fixed(2)), "B")
    for index, walk in enumerate("AAAB"):
        buffer.put(index, walk, index)
    buffer.end(4)
    chunks = drained(buffer)
    assert shown(chunks) == [("A", (0, 1), False), ("A", (2,), False), ("B", (3,), True)]


def test_a_marker_behind_a_chunk_that_never_fills_makes_it_ready() -> None:  # E10
    """The item that the marker stands for went to another worker (E4)."""
    buffer = StreamBuffer(stream(Fixed(4)), "decode", hosted={"prefill"})
    buffer.put(0, "prefill", 0)
    buffer.put(1, "prefill", 1)
    assert buffer.pop() is None and buffer.leaves is None
    buffer.mark(2, "decode")
    assert shown(drained(buffer)) == [("prefill", (0, 1), False)]
    assert buffer.leaves == "decode" and not buffer.finished


def test_the_final_chunk_belongs_to_the_host_of_the_terminal_walk() -> None:  # E4, E11
    here = StreamBuffer(stream(Fixed(1)), "decode", hosted={"prefill"})
    there = StreamBuffer(stream(Fixed(1)), "decode", hosted={"decode"})
    here.put(0, "prefill", 0)
    for buffer in (here, there):
        buffer.end(1)
    assert shown(drained(there)) == []
    assert shown(drained(here)) == [("prefill", (0,), False)] and here.leaves == "decode"
    there.hear(here.ran)
    assert shown(drained(there)) == [("decode", (), True)]


def test_a_chunk_waits_until_it_is_full() -> None:  # E10
    buffer = StreamBuffer(stream(Fixed(2)), "A")
    buffer.put(1, "A", 1)
    assert buffer.pop() is None
    buffer.put(0, "A", 0)
    assert shown(drained(buffer)) == [("A", (0, 1), False)]
    buffer.put(2, "A", 2)
    assert buffer.pop() is None
    buffer.end(3)
    assert shown(drained(buffer)) == [("A", (2,), True)]


def test_the_first_arrival_wins_and_others_are_counted() -> None:  # E10
    buffer = StreamBuffer(stream(Fixed(1)), "A")
    assert buffer.put(0, "A", "first") and not buffer.put(0, "A", "second")
    assert shown(drained(buffer)) == [("A", ("first",), False)]
    assert not buffer.put(0, "A", "third") and buffer.repeated == 2


def test_a_sliding_window_shows_items_again() -> None:  # E10
    buffer = StreamBuffer(stream(SlidingWindow(4, 2)), "A")
    for index in range(7):
        buffer.put(index, "A", index)
    buffer.end(7)
    chunks = drained(buffer)
    assert [(chunk.context, chunk.items) for chunk in chunks] == [
        ((), (0, 1, 2, 3)),
        ((2, 3), (4, 5)),
        ((3, 4, 5), (6,)),
    ]


def test_left_context_does_not_reach_into_another_walk() -> None:  # E10
    buffer = StreamBuffer(stream(LeftContext(2, 3)), "B")
    for index, walk in enumerate("AAABBBB"):
        buffer.put(index, walk, index)
    assert [(chunk.context, chunk.items) for chunk in drained(buffer)] == [
        ((), (0, 1)),
        ((0, 1), (2,)),
        ((), (3, 4)),
        ((3, 4), (5, 6)),
    ]


def test_a_lead_of_small_chunks_sees_all_before_it() -> None:  # E10
    policy = LeftContext(4, 1, lead=(1, 2, 1))
    assert (policy.largest, policy.most_context) == (4, 3)
    buffer = StreamBuffer(stream(policy), "A")
    for index in range(10):
        buffer.put(index, "A", index)
    buffer.end(10)
    kept, chunks = list[int](), list[Chunk]()
    while (chunk := buffer.pop()) is not None:
        kept.append(buffer.keep_from)
        buffer.record(chunk)
        chunks.append(chunk)
    assert [(chunk.context, chunk.items) for chunk in chunks] == [
        ((), (0,)),
        ((0,), (1, 2)),
        ((0, 1, 2), (3,)),
        ((3,), (4, 5, 6, 7)),
        ((7,), (8, 9)),
    ]
    # Another worker would need no more before each chunk than that shows.
    assert kept == [0, 0, 0, 3, 7]


def test_the_next_index_is_recorded_after_the_node_ran_and_never_goes_back() -> None:  # E9
    buffer = StreamBuffer(stream(Fixed(2)), "A")
    for index in range(4):
        buffer.put(index, "A", index)
    start = buffer.ran
    chunk = buffer.pop()
    assert chunk is not None and buffer.next_index == 0
    buffer.record(chunk)
    assert buffer.next_index == 2
    buffer.hear(start)
    assert buffer.next_index == 2 and shown(drained(buffer)) == [("A", (2, 3), False)]


def test_a_worker_that_takes_over_sees_the_same_chunks() -> None:  # E9, E15
    """With the position and the items from `keep_from` on, it goes on as the first worker would have."""
    first = StreamBuffer(stream(SlidingWindow(4, 2)), "A")
    for index in range(9):
        first.put(index, "A", index)
    first.end(9)
    for _ in range(2):
        chunk = first.pop()
        assert chunk is not None
        first.record(chunk)
    second = StreamBuffer(stream(SlidingWindow(4, 2)), "A")
    second.end(9)
    second.hear(first.ran)
    for index in reversed(range(5, 9)):
        second.put(index, "A", index)
    assert first.keep_from < 5 and second.pop() is None, "a chunk without its context"
    for index in range(first.keep_from, 5):
        second.put(index, "A", index)
    assert drained(second) == drained(first)


def test_a_final_chunk_that_ran_is_not_given_again_after_a_take_over() -> None:  # E11
    first = talker()
    first.end(0)
    drained(first)
    second = talker()
    second.end(0)
    second.hear(first.ran)
    assert second.finished and second.pop() is None


def test_the_producer_may_be_ahead_by_the_capacity() -> None:  # E13
    buffer = StreamBuffer(stream(Fixed(2), capacity=3), "A")
    for index in range(buffer.capacity):
        buffer.put(index, "A", index)
    with pytest.raises(StreamFault, match="holds 3 items, and its producer sends more"):
        buffer.put(3, "A", 3)
    drained(buffer)
    assert buffer.next_index == 2 and buffer.put(4, "A", 4)


def test_a_stream_that_contradicts_itself_is_a_fault() -> None:
    buffer = StreamBuffer(stream(Fixed(1)), "A")
    buffer.put(3, "A", 3)
    with pytest.raises(StreamFault, match="has later items"):
        buffer.end(2)
    buffer.end(4)
    buffer.end(4)
    with pytest.raises(StreamFault, match="was said to end before 4"):
        buffer.end(5)
    with pytest.raises(StreamFault, match="item 4 .* ends before 4"):
        buffer.put(4, "A", 4)
    with pytest.raises(StreamFault, match="was read to 9"):
        buffer.hear(StreamPosition(9))


def test_markers_are_bounded() -> None:
    buffer = StreamBuffer(stream(Fixed(1), capacity=2), "A")
    with pytest.raises(StreamFault, match="markers"):
        for index in range(9):
            buffer.mark(index, "A")
