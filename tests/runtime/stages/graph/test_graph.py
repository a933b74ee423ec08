# SPDX-License-Identifier: Apache-2.0
"""Graphs and models: what is refused before anything starts, in which words."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from speech_graph import CODE2WAV, FRAMES, STATES, TALKER, THINKER, decoder_walk, speech_graph

from pontil.runtime.errors import GraphError, ModelError
from pontil.runtime.stages.graph.catalog import SPEECH_DEMO, GraphModel, GraphNode
from pontil.runtime.stages.graph.connection import Connection
from pontil.runtime.stages.graph.graph import Graph
from pontil.runtime.stages.graph.mermaid import mermaid
from pontil.runtime.stages.graph.partition import Authority, GraphPartition
from pontil.runtime.stages.graph.policies import Fixed, LeftContext, SlidingWindow
from pontil.runtime.stages.graph.walk import Loop, Node, Parallel, Sequential, Walk

CODER = Node("code2wav")
WALK = Walk("w", Node("n"))
LONE = GraphPartition("lone", ("m",), (Walk("v", Node("m")),), Authority.PRODUCER_TRIGGERED)
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "no partition": (lambda: Graph("g", ()), "has no partition"),
    "a callback onto an unknown partition": (
        lambda: speech_graph(Connection("talker", "decoder", "frames", Fixed(1), decoder_walk)),
        "callback of connection 'frames' from 'talker' to 'decoder' drives a partition that does not exist: 'decoder'",
    ),
    "a connection from an unknown partition": (
        lambda: speech_graph(Connection("speaker", "talker", "frames", Fixed(1))),
        "names a partition that does not exist: 'speaker'",
    ),
    "a callback onto a STATE_MACHINE partition": (
        lambda: speech_graph(Connection("talker", "thinker", "back", Fixed(1), decoder_walk)),
        "has a callback but 'thinker' is STATE_MACHINE",
    ),
    "a PRODUCER_TRIGGERED partition that nothing drives": (
        lambda: speech_graph(frames=replace(FRAMES, callback=None)),
        "'code2wav' is PRODUCER_TRIGGERED but no connection drives it",
    ),
    "a PRODUCER_TRIGGERED partition with a state machine too": (
        lambda: speech_graph(talker=replace(TALKER, transitions={"talker_prefill": "talker_decode"})),
        "'talker' is PRODUCER_TRIGGERED and has walks of a state machine too",
    ),
    "no terminal walk": (lambda: speech_graph(talker=replace(TALKER, terminal=None)), "name its terminal walk"),
    "no initial walk": (lambda: speech_graph(thinker=replace(THINKER, initial=None)), "name its initial walk"),
    "a terminal walk of a STATE_MACHINE partition": (
        lambda: speech_graph(thinker=replace(THINKER, terminal="prefill_text")), "has a terminal walk: remove that",
    ),
    "two partitions of a name": (
        lambda: speech_graph(talker=replace(TALKER, name="thinker")), "two partitions are named 'thinker'",
    ),
    "a node in two partitions": (
        lambda: speech_graph(code2wav=replace(CODE2WAV, nodes=("code2wav", "talker"))),
        "the node 'talker' stands twice",
    ),
    "two walks of a name": (
        lambda: speech_graph(code2wav=replace(CODE2WAV, walks=(Walk("talker_decode", Node("code2wav")),))),
        "two walks are named 'talker_decode'",
    ),
    "an edge twice": (lambda: speech_graph(STATES), "'states' from 'thinker' to 'talker' stands twice"),
    "no walk": (lambda: speech_graph(code2wav=replace(CODE2WAV, walks=())), "'code2wav' has no walk"),
    "a node in two parts of a Parallel": (
        lambda: speech_graph(code2wav=replace(CODE2WAV, walks=(Walk("c", Parallel((CODER, Loop(CODER, 2)))),))),
        "a Parallel with 'code2wav' in two parts",
    ),
    "an empty part": (
        lambda: speech_graph(code2wav=replace(CODE2WAV, walks=(Walk("c", Sequential((Parallel(()),))),))),
        "walk 'c' has an empty Parallel",
    ),
    "a loop of no round": (
        lambda: speech_graph(code2wav=replace(CODE2WAV, walks=(Walk("c", Loop(Node("code2wav"), 0)),))),
        "walk 'c' has a Loop of 0 rounds",
    ),
    "a loop that nothing stops": (
        lambda: speech_graph(code2wav=replace(CODE2WAV, walks=(Walk("c", Loop(Loop(Node("code2wav")))),))),
        "walk 'c' has a Loop that no node can stop",
    ),
    "a node of another partition": (
        lambda: speech_graph(code2wav=replace(CODE2WAV, walks=(Walk("c", Node("talker")),))),
        "walk 'c' runs the node 'talker', which partition 'code2wav' does not have",
    ),
    "a node that no walk runs": (
        lambda: speech_graph(code2wav=replace(CODE2WAV, nodes=("code2wav", "spare"))),
        "no walk of partition 'code2wav' runs its node 'spare'",
    ),
    "an unknown walk": (
        lambda: speech_graph(talker=replace(TALKER, terminal="talker_end")),
        "'talker' names the walk 'talker_end', which it does not have",
    ),
    "a connection to itself": (
        lambda: speech_graph(Connection("talker", "talker", "own", Fixed(1))), "leads from a partition to itself",
    ),
    "a chunk of nothing": (lambda: speech_graph(frames=replace(FRAMES, policy=Fixed(0))), r"Fixed\(0\): a chunk has"),
    "a window that jumps": (
        lambda: speech_graph(frames=replace(FRAMES, policy=SlidingWindow(2, 3))), r"SlidingWindow\(2, 3\): the stride",
    ),
    "a negative context": (
        lambda: speech_graph(frames=replace(FRAMES, policy=LeftContext(2, -1))), r"LeftContext\(2, -1\)",
    ),
    "a chunk of nothing in the lead": (
        lambda: speech_graph(frames=replace(FRAMES, policy=LeftContext(2, 1, (1, 0)))), r"1\+0, then 2, 1\): a chunk",
    ),
    "a producer that may not fill a chunk": (
        lambda: speech_graph(frames=replace(FRAMES, capacity=3)), "3 items ahead, but a chunk may need 4",
    ),
    "streams that are cut differently": (
        lambda: speech_graph(Connection("thinker", "talker", "layers", Fixed(2))), "have different policies",
    ),
    "streams of two producers": (
        lambda: speech_graph(Connection("thinker", "code2wav", "words", Fixed(1), decoder_walk)),
        "talker and thinker both lead to partition 'code2wav': one producer has all of its streams",
    ),
    "a circle": (
        lambda: speech_graph(Connection("talker", "thinker", "back", Fixed(1))),
        "'thinker', 'talker', 'code2wav' wait for each other's items in a circle",
    ),
    "partitions that drive each other": (
        lambda: Graph(
            "g",
            (GraphPartition("p", ("n",), (WALK,), Authority.PRODUCER_TRIGGERED), LONE),
            (
                Connection("p", "lone", "a", Fixed(1), lambda *_: "v"),
                Connection("lone", "p", "b", Fixed(1), lambda *_: "w"),
            ),
        ),
        "'p', 'lone' wait for each other's items in a circle",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_graph_that_cannot_run_is_refused_in_one_sentence(name: str) -> None:  # E1
    build, says = MISTAKES[name]
    with pytest.raises(GraphError, match=says) as found:
        build()
    assert "\n" not in str(found.value) and isinstance(found.value, ModelError)


def test_a_good_graph_is_accepted_and_asked() -> None:
    graph = speech_graph()
    assert graph.consumers("thinker") == ("talker",)
    assert graph.partition("talker") is TALKER and TALKER.last_walk == "talker_decode"
    assert CODE2WAV.last_walk == "code2wav_chunk" and THINKER.last_walk is None
    with pytest.raises(GraphError, match="no partition 'speaker'"):
        graph.partition("speaker")


def test_walks_follow_one_another_in_a_circle_or_to_the_last() -> None:  # E1
    walks = tuple(Walk(name, Node("n")) for name in "abc")
    partition = GraphPartition("p", ("n",), walks, initial="a", transitions={"a": "b", "b": "c", "c": "b"})
    assert "".join(map(partition.walk_of_pass, range(6))) == "abcbcb" and partition.walk_of_pass(10**9) == "c"
    assert "".join(map(replace(partition, transitions={"a": "c"}).walk_of_pass, range(4))) == "accc"


def test_nodes_of_a_walk() -> None:
    walk = Walk("w", Sequential((Parallel((Node("a"), Loop(Node("b")))), Node("c"), Node("a"))))
    assert walk.nodes == ("a", "b", "c")


CONSUMER = GraphPartition(
    "writer", ("writer",), (Walk("draft", Node("writer")), Walk("ink", Loop(Node("writer")))), initial="draft"
)
WORDS = Connection("thinker", "writer", "words", Fixed(1))
WRITING = Graph("writing", (THINKER, CONSUMER), (WORDS,))
MORE_WORDS = Connection("thinker", "writer", "more", Fixed(1))


def writing(*prefill_walks: str) -> GraphModel:
    nodes = GraphNode("thinker", "engine"), GraphNode("writer", "engine", prefill_walks=prefill_walks)
    return GraphModel("writing", nodes, "thinker", WRITING)


def moving(transitions: dict[str, str]) -> GraphModel:
    return replace(writing(), graph=replace(WRITING, partitions=(THINKER, replace(CONSUMER, transitions=transitions))))


def two_nodes(partition: GraphPartition) -> GraphPartition:
    walks = (replace(walk, body=Sequential((walk.body, Node("pen")))) for walk in partition.walks)
    return replace(partition, nodes=(*partition.nodes, "pen"), walks=tuple(walks))


WRONG_MODELS: dict[str, tuple[Callable[[], GraphModel], str]] = {
    "a STATE_MACHINE consumer of a stream by walk": (
        lambda: writing("draft"), "'writer' is STATE_MACHINE and takes a stream, so all of its walks are on one worker",
    ),
    "an unknown walk": (lambda: writing("sketch"), "'writer' has no walk 'sketch' for its prefill worker"),
    "no walk for decode": (lambda: writing("draft", "ink"), "'writer' leaves no walk to its decode worker"),
    "two streams into a stage": (
        lambda: replace(writing(), graph=replace(WRITING, connections=(*WRITING.connections, MORE_WORDS))),
        "'thinker' generates and feeds 'writer' by two streams: only a stage without tokens can",
    ),
    "a step of several nodes": (
        lambda: replace(writing(), graph=replace(WRITING, partitions=(THINKER, two_nodes(CONSUMER)))),
        r"'writer' generates, and a step of it is one node: a walk is Node or Loop\(Node\) of its name",
    ),
    "a stage that is no partition": (
        lambda: replace(writing(), nodes=(*writing().nodes, GraphNode("singer", "node"))), "no partition 'singer'",
    ),
    "a first stage that is none": (lambda: replace(writing(), first="reader"), "its first is 'reader', no stage"),
    "audio of no stage": (lambda: replace(writing(), audio="singer"), "its audio is 'singer', no stage"),
    "a recognizer that is none": (lambda: replace(writing(), recognizer="ear"), "its recognizer is 'ear', no stage"),
    "audio that nothing leads to": (
        lambda: replace(SPEECH_DEMO, audio="recognizer"), "no stream leads from 'llm' to 'recognizer', which makes its",
    ),
    "audio that is read": (
        lambda: replace(writing(), audio="thinker"), "'thinker' makes the audio and feeds 'writer'",
    ),
    "an answer with two moves": (
        lambda: moving({"draft": "ink", "ink": "draft"}), "'writer' generates, from its prompt to its answer",
    ),
    "a step that sees items again": (
        lambda: replace(writing(), graph=replace(WRITING, connections=(replace(WORDS, policy=SlidingWindow(2, 1)),))),
        r"'writer' generates, and no step of it sees an item again, as SlidingWindow\(2, 1\) says",
    ),
    "a step behind a node": (
        lambda: replace(writing(), nodes=(GraphNode("thinker", "node"), writing().nodes[1])),
        "'writer' generates and takes the stream 'words' of 'thinker', which does not",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_a_model_that_no_worker_could_carry_out_is_refused_in_one_sentence(name: str) -> None:  # E1
    build, says = WRONG_MODELS[name]
    assert not writing().node("writer").splits and moving({"draft": "ink"})
    with pytest.raises(GraphError, match=says):
        build()


def test_a_graph_as_mermaid() -> None:
    graph = speech_graph(Connection("thinker", "talker", 'a "voice"', Fixed(1)))
    lines = [line.strip() for line in mermaid(graph).splitlines()]
    assert lines == [
        "flowchart LR",
        'subgraph p0["thinker (state machine)"]',
        'w0["prefill_text: thinker"]',
        'w1["thinker_decode: loop(thinker)"]',
        "w0 --> w1",
        "end",
        'subgraph p1["talker (producer triggered)"]',
        'w2["talker_prefill: talker"]',
        'w3["talker_last_prefill: (talker → code_predictor)"]',
        'w4["talker_decode: loop((talker → code_predictor))"]',
        "end",
        'subgraph p2["code2wav (producer triggered)"]',
        'w5["code2wav_chunk: code2wav"]',
        "end",
        'p0 ==>|"states: Fixed(1)"| p1',
        'p1 ==>|"frames: LeftContext(4, 2)"| p2',
        'p0 -->|"a #quot;voice#quot;: Fixed(1)"| p1',
    ]
