# SPDX-License-Identifier: Apache-2.0
"""A graph with the shape of a speaking model: a Thinker drives a Talker, which drives a decoder of its frames."""

from typing import Any

from pontil.runtime.stages.graph.connection import Connection
from pontil.runtime.stages.graph.graph import Graph
from pontil.runtime.stages.graph.partition import Authority, GraphPartition
from pontil.runtime.stages.graph.policies import ChunkPolicy, Fixed, LeftContext
from pontil.runtime.stages.graph.walk import Loop, Node, Sequential, Walk

THINKER = GraphPartition(
    "thinker",
    nodes=("thinker",),
    walks=(Walk("prefill_text", Node("thinker")), Walk("thinker_decode", Loop(Node("thinker")))),
    initial="prefill_text",
    transitions={"prefill_text": "thinker_decode"},
)
TALKER = GraphPartition(
    "talker",
    nodes=("talker", "code_predictor"),
    walks=(
        Walk("talker_prefill", Node("talker")),
        Walk("talker_last_prefill", Sequential((Node("talker"), Node("code_predictor")))),
        Walk("talker_decode", Loop(Sequential((Node("talker"), Node("code_predictor"))))),
    ),
    authority=Authority.PRODUCER_TRIGGERED,
    terminal="talker_decode",
)
CODE2WAV = GraphPartition(
    "code2wav",
    nodes=("code2wav",),
    walks=(Walk("code2wav_chunk", Node("code2wav")),),
    authority=Authority.PRODUCER_TRIGGERED,
)


def talker_walk(walk: str, tracked: str | None, number: int) -> str:
    """The prompt's states are the Talker's prompt, the first state of the answer ends it, each later one is decoded."""
    if walk != "thinker_decode":
        return "talker_prefill"
    return "talker_last_prefill" if tracked in (None, "talker_prefill") else "talker_decode"


def decoder_walk(walk: str, tracked: str | None, number: int) -> str:
    return "code2wav_chunk"


STATES = Connection("thinker", "talker", "states", Fixed(1), talker_walk, capacity=8)
FRAMES = Connection("talker", "code2wav", "frames", LeftContext(4, 2), decoder_walk, capacity=8)


def speech_graph(*more: Connection, **changes: Any) -> Graph:
    """Return the graph; with `changes`, another one in place of the partition or connection of a name."""
    parts = {"thinker": THINKER, "talker": TALKER, "code2wav": CODE2WAV, "states": STATES, "frames": FRAMES, **changes}
    partitions = tuple(parts[name] for name in ("thinker", "talker", "code2wav"))
    return Graph("speech", partitions, (parts["states"], parts["frames"], *more))


def stream(policy: ChunkPolicy, capacity: int = 512) -> Connection:
    """Return a stream by itself, for tests of one buffer."""
    return Connection("producer", "consumer", "items", policy, capacity=capacity)
