# SPDX-License-Identifier: Apache-2.0
"""Indices and tags of a producer's passes."""

from dataclasses import replace

import pytest
from speech_graph import FRAMES, STATES, speech_graph, talker_walk

from pontil.runtime.errors import GraphError
from pontil.runtime.stages.graph.connection import Connection
from pontil.runtime.stages.graph.graph import Graph
from pontil.runtime.stages.graph.partition import GraphPartition
from pontil.runtime.stages.graph.policies import Fixed
from pontil.runtime.stages.graph.producer import StreamProducer
from pontil.runtime.stages.graph.walk import Node, Walk

# A second stream to the Talker, without a callback, and one of the same edge to another partition.
LAYERS = Connection("thinker", "talker", "layers", STATES.policy, capacity=8)
ONE = {"states": (1, 8)}


def machines(*connections: Connection) -> Graph:
    """Return a graph of STATE_MACHINE partitions of one walk."""
    names = dict.fromkeys(name for one in connections for name in (one.source, one.target))
    walks = {name: Walk(f"w{number}", Node(name)) for number, name in enumerate(names)}
    parts = (GraphPartition(name, (name,), (walk,), initial=walk.name) for name, walk in walks.items())
    return Graph("machines", tuple(parts), connections)


def test_a_pass_takes_one_index_whatever_the_number_of_copies() -> None:  # E2
    producer = StreamProducer(
        machines(Connection("a", "b", "items", Fixed(1)), Connection("a", "c", "items", Fixed(4))), "a"
    )
    for number in range(3):
        found = producer.emit("w0", {"items": (1, 8)})
        assert [(tag.connection.target, tag.index) for tag in found.tags] == [("b", number), ("c", number)]
    assert producer.produced == {"items": 3}


def test_edges_between_the_same_partitions_go_together() -> None:  # E2
    """A pass of the consumer takes a chunk of each: an item of one alone would be for another pass than it seems."""
    producer = StreamProducer(speech_graph(LAYERS), "thinker")
    for number in range(2):
        found = producer.emit("prefill_text", {"states": (4, 8), "layers": (4, 8)})
        assert [(tag.connection.edge, tag.index) for tag in found.tags] == [("states", number), ("layers", number)]
    with pytest.raises(GraphError, match="a pass emitted to 'talker', and nothing on its 'layers'"):
        producer.emit("prefill_text", {"states": (4, 8)})


def test_items_carry_the_walk_that_the_callback_names() -> None:  # E3
    producer = StreamProducer(speech_graph(), "thinker")
    walks = [producer.emit(walk, ONE).tags[0].walk for walk in ("prefill_text", *("thinker_decode",) * 3)]
    assert walks == ["talker_prefill", "talker_last_prefill", "talker_decode", "talker_decode"]
    assert producer.tracked == {"talker": "talker_decode"}


def test_the_tracked_walk_changes_after_all_edges_were_tagged() -> None:  # E3
    """Two callbacks into one consumer see the same tracked walk in a pass; else the second would be a step ahead."""
    seen = list[str | None]()

    def also(walk: str, tracked: str | None, number: int) -> str:
        seen.append(tracked)
        return talker_walk(walk, tracked, number)

    other = Connection("thinker", "talker", "layers", STATES.policy, also, capacity=8)
    producer = StreamProducer(speech_graph(other), "thinker")
    for _ in range(3):
        found = producer.emit("thinker_decode", {"states": (1, 8), "layers": (1, 8)})
        assert len({tag.walk for tag in found.tags}) == 1
    assert seen == [None, "talker_last_prefill", "talker_decode"]


def test_an_edge_without_callback_carries_the_consumers_walk() -> None:  # E3
    producer = StreamProducer(speech_graph(LAYERS), "thinker")
    found = producer.emit("prefill_text", {"states": (4, 8), "layers": (4, 8)})
    assert [tag.walk for tag in found.tags] == ["talker_prefill", "talker_prefill"]


def test_a_consumer_that_the_conductor_moves_has_no_tags() -> None:  # E3
    producer = StreamProducer(machines(Connection("a", "b", "items", Fixed(1))), "a")
    assert producer.emit("w0", {"items": (1,)}).tags[0].walk is None and producer.tracked == {}


def test_callbacks_that_disagree_are_refused() -> None:  # E1
    other = Connection("thinker", "talker", "layers", STATES.policy, lambda *_: "talker_decode", capacity=8)
    producer = StreamProducer(speech_graph(other), "thinker")
    with pytest.raises(GraphError, match="callbacks into one partition must agree"):
        producer.emit("prefill_text", {"states": (4, 8), "layers": (4, 8)})


def test_a_change_of_walk_marks_all_streams_for_the_host_of_the_walk_before() -> None:  # E4
    producer = StreamProducer(speech_graph(LAYERS), "thinker")
    assert producer.emit("prefill_text", {"states": (4, 8), "layers": (4, 8)}).markers == ()
    markers = producer.emit("thinker_decode", {"states": (1, 8), "layers": (1, 8)}).markers
    assert [(one.connection.edge, one.index, one.left, one.walk) for one in markers] == [
        ("states", 1, "talker_prefill", "talker_last_prefill"),
        ("layers", 1, "talker_prefill", "talker_last_prefill"),
    ]


def test_counts_are_sizes_of_the_token_axis() -> None:  # A1, E5
    found = StreamProducer(speech_graph(), "talker").emit("talker_decode", {"frames": (3, 16)})
    assert found.token_counts == {"frames": 3}
    assert StreamProducer(speech_graph(), "talker").emit("talker_decode", {}).token_counts == {}


def test_an_unknown_edge_is_refused() -> None:
    producer = StreamProducer(speech_graph(), "talker")
    with pytest.raises(GraphError, match="'sound'"):
        producer.emit("talker_decode", {"sound": (1,)})


def test_a_walk_that_the_consumer_does_not_have_is_refused() -> None:  # E1
    graph = speech_graph(frames=replace(FRAMES, callback=lambda *_: "talker_decode"))
    with pytest.raises(GraphError, match="drives its target to the walk 'talker_decode', which it does not have"):
        StreamProducer(graph, "talker").emit("talker_decode", {"frames": (1, 16)})
