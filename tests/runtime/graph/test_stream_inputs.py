# SPDX-License-Identifier: Apache-2.0
"""Several streams into one partition."""

import pytest
from speech_graph import STATES, speech_graph, stream

from pontil.runtime.graph.connection import Connection
from pontil.runtime.graph.policies import Fixed
from pontil.runtime.graph.stream_buffer import StreamBuffer, StreamFault
from pontil.runtime.graph.stream_inputs import PassInput, StreamInputs

FIRST = stream(Fixed(1, frozenset({"C"})))
SECOND = Connection("producer", "consumer", "others", Fixed(1))


def inputs() -> tuple[StreamInputs, StreamBuffer, StreamBuffer]:
    one, other = StreamBuffer(FIRST, "C"), StreamBuffer(SECOND, "C")
    return StreamInputs({FIRST.key: one, SECOND.key: other}), one, other


def ran(found: StreamInputs) -> PassInput | None:
    taken = found.pop()
    if taken is not None:
        found.record(taken)
    return taken


def test_a_pass_takes_a_chunk_of_each_stream_or_none() -> None:
    found, one, other = inputs()
    one.put(0, "A", "x")
    assert found.pop() is None and one.taken.index == 0
    other.put(0, "A", "y")
    taken = ran(found)
    assert taken is not None and taken.walk == "A" and not taken.final
    assert {key: chunk.items for key, chunk in taken.chunks.items()} == {FIRST.key: ("x",), SECOND.key: ("y",)}
    assert one.next_index == other.next_index == 1


def test_what_is_put_back_is_next_in_every_stream() -> None:  # E8
    found, one, other = inputs()
    for buffer in (one, other):
        buffer.put(0, "A", 0)
    taken = found.pop()
    assert taken is not None
    found.put_back(taken)
    assert found.pop() == taken


def test_streams_that_disagree_are_a_fault() -> None:  # E1
    found, one, other = inputs()
    one.put(0, "A", 0)
    other.put(0, "B", 0)
    with pytest.raises(StreamFault, match="one pass is meant for several walks: 'A' by .*items.* 'B' by .*others"):
        found.pop()


def test_the_last_stream_that_ends_makes_the_final_pass() -> None:  # E11
    found, one, other = inputs()
    for buffer in (one, other):
        buffer.put(0, "C", 0)
    one.end(1)
    taken = ran(found)
    assert taken is not None and not taken.final and ran(found) is None
    other.end(1)
    taken = ran(found)
    assert taken is not None and taken.final and set(taken.chunks) == {SECOND.key} and taken.goes_on
    assert ran(found) is None


def test_both_ends_at_once_make_one_final_pass() -> None:  # E11
    found, one, other = inputs()
    one.end(0)
    other.end(0)
    taken = ran(found)
    assert taken is not None and taken.final and taken.goes_on and not taken.is_last_pass
    found.close()
    assert one.closed and other.closed and found.pop() is None


def test_the_buffers_of_a_partition_know_its_terminal_walk_and_its_worker() -> None:
    graph = speech_graph(Connection("thinker", "talker", "voice"))
    found = StreamInputs.of(graph, "talker", {"talker_prefill"})
    (buffer,) = found.buffers.values()
    assert list(found.buffers) == [STATES.key], "an input that is given once has no buffer"
    buffer.end(0)
    assert found.pop() is None and buffer.leaves == "talker_decode"
    assert not StreamInputs.of(graph, "thinker").buffers
