# SPDX-License-Identifier: Apache-2.0
"""The models of several stages: for each its stages, and how audio goes in and comes out."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pontil.runtime.errors import GraphError
from pontil.runtime.stages.graph.connection import Connection
from pontil.runtime.stages.graph.graph import Graph
from pontil.runtime.stages.graph.medium import MEDIA
from pontil.runtime.stages.graph.partition import Authority, GraphPartition
from pontil.runtime.stages.graph.policies import Fixed, LeftContext, SlidingWindow
from pontil.runtime.stages.graph.walk import Loop, Node, Walk, WalkPart

# A stage that generates tokens, with prefill and decode; or one that computes without tokens.
NodeKind = Literal["engine", "node"]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One stage. `model` is the built-in name of its own model; None: it is part of the one model directory. It
    `splits` if it has `prefill_walks`: then prefill and decode of it may be on different workers, and these walks are
    those of its prefill worker. A step of it makes `codes`, of which the first is the sampled id. As a later stage of a
    run, or one that speaks a given text, it makes at most `max_tokens` (0: as its context has room for), and samples by
    `sampling` unless the client's own request is greedy. Without workers of one that is `optional` the model serves all
    requests that do not need it."""

    name: str
    kind: NodeKind
    model: str | None = None
    prefill_walks: tuple[str, ...] = ()
    codes: int = 1
    max_tokens: int = 0
    sampling: tuple[tuple[str, Any], ...] = ()
    optional: bool = False

    @property
    def generates(self) -> bool:
        return self.kind == "engine"

    @property
    def splits(self) -> bool:
        return bool(self.prefill_walks)


@dataclass(frozen=True, slots=True)
class SpeechPrompt:
    """The prompt by which a first stage speaks a given text: special tokens `before` and `after` the voice and the
    text."""

    before: str
    after: str

    def of(self, text: str, voice: str | None) -> tuple[str, str, str]:
        """Return the parts of the prompt; that in the middle is plain text, whatever it looks like."""
        return self.before, text if voice is None else f"{voice}: {text}", self.after


@dataclass(frozen=True, slots=True)
class GraphModel:
    """A model of several stages.

    `first` is the stage that answers in text, to which a client's request goes. `audio` is the stage that makes PCM of
    `sample_rate`, and `recognizer` the one that makes text of a recording, where there are such. `audio_needs_states`:
    the audio is made of the first stage's states, so there is none of a text alone. With `speech` the first stage makes
    the audio of a given text, as its answer to such a prompt. `graph` has its walks and streams.
    `voices` are those that a client may ask for, the first one by default. `question` is a prompt that it answers in
    sound, for a self-test. A directory is this model if its config.json
    names `architecture`; `names` are other names by which it is known, such as its id on a hub.
    """

    name: str
    nodes: tuple[GraphNode, ...]
    first: str
    graph: Graph
    audio: str | None = None
    sample_rate: int = 24000
    recognizer: str | None = None
    audio_needs_states: bool = False
    speech: SpeechPrompt | None = None
    voices: tuple[str, ...] = ()
    question: str = "Say good day."
    architecture: str | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for mistake in stage_mistakes(self):
            raise GraphError(f"the model '{self.name}' cannot run: {mistake}")

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    @property
    def answers_in_sound(self) -> bool:
        return self.audio is not None and self.speech is None

    @property
    def encoder(self) -> str | None:
        """The stage that makes rows of the first stage's prompt, of recordings and images, if there is one."""
        return next((one.source for one in self.graph.incoming(self.first)), None)

    def node(self, name: str) -> GraphNode:
        """Return a stage. An unknown name raises GraphError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise GraphError(f"{self.name} has no stage '{name}': it has {', '.join(self.node_names)}")

    def consumers(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return for each edge that leaves a stage the stage that it leads to, and what it carries."""
        return tuple((one.target, one.edge) for one in self.graph.outgoing(name))

    @property
    def edges(self) -> tuple[str, ...]:
        """The streams, each named "from/to/name"."""
        return tuple(edge_name(connection) for connection in self.graph.connections)

    def connection(self, edge: str) -> Connection:
        """Return the connection of a stream's name. An unknown name raises GraphError."""
        for one in self.graph.connections:
            if edge_name(one) == edge:
                return one
        raise GraphError(f"{self.name} has no stream '{edge}': it has {', '.join(self.edges)}")


def stage_mistakes(model: GraphModel) -> Iterator[str]:
    """Yield the mistakes of a model whose graph is valid: what no worker could carry out (E1)."""
    yield from part_mistakes(model)
    for node in model.nodes:
        yield from step_mistakes(model, node)
        stage = model.graph.partition(node.name)
        streams = [one.edge for one in model.graph.incoming(node.name)]
        if node.generates and len(streams) > 1:
            yield f"'{node.name}' generates and takes the streams {', '.join(streams)}: it can take one at most"
        if node.generates and (twice := double(one.target for one in model.graph.outgoing(node.name))):
            yield f"'{node.name}' generates and feeds '{twice}' by two streams: only a stage without tokens can"
        ids = [one.edge for one in model.graph.outgoing(node.name) if one.edge != STATES]
        if node.generates and len(ids) > 1:
            yield f"'{node.name}' generates and streams its ids as {' and '.join(ids)}: it can have one such stream"
        if node.generates and any(walk.body not in (Node(node.name), Loop(Node(node.name))) for walk in stage.walks):
            yield f"'{node.name}' generates, and a step of it is one node: a walk is Node or Loop(Node) of its name"
        if unknown := [name for name in node.prefill_walks if stage.walk(name) is None]:
            yield f"the stage '{node.name}' has no walk '{unknown[0]}' for its prefill worker"
        if node.splits and len(node.prefill_walks) == len(stage.walks):
            yield f"the stage '{node.name}' leaves no walk to its decode worker"
        # The stream into the first stage has rows of its prompt: whoever computes that takes it.
        if node.splits and streams and not stage.is_driven and node.name != model.first:
            yield (
                f"the stage '{node.name}' is STATE_MACHINE and takes a stream, so all of its walks are on one worker:"
                " give it no prefill walks"
            )


def part_mistakes(model: GraphModel) -> Iterator[str]:
    """Yield what is wrong with the stages that clients hear of."""
    for part, name in (("first", model.first), ("audio", model.audio), ("recognizer", model.recognizer)):
        if name not in (None, *model.node_names):
            yield f"its {part} is '{name}', no stage"
    if model.audio is None:
        return
    source = model.audio
    for target, _ in model.consumers(source):
        # Its items alone cannot be made again: its sound would be heard twice.
        yield f"'{source}' makes the audio and feeds '{target}': give that stage a node of its own"
    # Of all streams into a stage one producer has them all.
    while incoming := model.graph.incoming(source):
        source = incoming[0].source
        if source == model.first:
            return
    yield f"no stream leads from '{model.first}' to '{model.audio}', which makes its audio"


def step_mistakes(model: GraphModel, node: GraphNode) -> Iterator[str]:
    """Yield what no step of a stage that generates can do."""
    stage = model.graph.partition(node.name)
    if not node.generates:
        return
    if not stage.transitions.keys() <= {stage.initial}:
        yield f"'{node.name}' generates, from its prompt to its answer: only its initial walk can have a transition"
    for one in model.graph.incoming(node.name):
        if one.policy.most_context:
            yield f"'{node.name}' generates, and no step of it sees an item again, as {one.policy.label} says"
        if not model.node(one.source).generates and node.name != model.first:
            yield f"'{node.name}' generates and takes the stream '{one.edge}' of '{one.source}', which does not"


def double(names: Iterable[str]) -> str | None:
    """Return a name that comes twice, if there is one."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def edge_name(connection: Connection) -> str:
    """Return the name by which messages know a connection."""
    return "/".join(connection.key)


# The edge of a generating stage that carries states; any other carries what is made of its ids.
STATES = "states"
# Prompts of first stages are streamed in items of so many positions, whatever the chunks in which they are computed.
PROMPT_UNIT = 32
PREFILL, DECODE = "prefill_text", "decode_text"
TALKER_PREFILL, TALKER_LAST_PREFILL, TALKER_DECODE = "talker_prefill", "talker_last_prefill", "talker_decode"


def talker_walk(producer: str, tracked: str | None, number: int) -> str:
    """Name the Talker's walk for an item: the Thinker's prompt fills its prompt, the first state of the answer ends
    it, and each of the others goes into one step."""
    if producer != DECODE:
        return TALKER_PREFILL
    return TALKER_LAST_PREFILL if tracked in (None, TALKER_PREFILL) else TALKER_DECODE


def code2wav_walk(producer: str, tracked: str | None, number: int) -> str:
    return "code2wav_chunk"


def speak_walk(producer: str, tracked: str | None, number: int) -> str:
    return "speak"


def snac_walk(producer: str, tracked: str | None, number: int) -> str:
    return "snac_window"


def partition(
    name: str, *walks: tuple[str, WalkPart], terminal: str | None = None, driven: bool = True
) -> GraphPartition:
    """Return a partition of one node. One that is not driven goes through its walks in order, and stays in the last."""
    made = tuple(Walk(walk, body) for walk, body in walks)
    if driven:
        return GraphPartition(name, (name,), made, Authority.PRODUCER_TRIGGERED, terminal=terminal)
    follow = {one.name: other.name for one, other in zip(made, made[1:], strict=False)}
    return GraphPartition(name, (name,), made, initial=made[0].name, transitions=follow)


def text_partition(name: str) -> GraphPartition:
    """Return the partition of a stage that generates text from token ids."""
    return partition(name, (PREFILL, Node(name)), (DECODE, Loop(Node(name))), driven=False)


# Sound begins after 12 frames, a second of it. A later chunk of the lead has at most as many as came before it.
CODES_POLICY = LeftContext(300, 25, lead=(12, 12, 24, 48, 96, 108))
# The values of its makers' generation settings.
TALKER_SAMPLING = (("temperature", 0.9), ("top_k", 50), ("top_p", 1.0), ("repetition_penalty", 1.05))
QWEN3_OMNI = GraphModel(
    name="qwen3-omni",
    nodes=(
        GraphNode("encoder", "node", optional=True),
        GraphNode("thinker", "engine", prefill_walks=(PREFILL,)),
        GraphNode(
            "talker", "engine", prefill_walks=(TALKER_PREFILL, TALKER_LAST_PREFILL), codes=16,
            max_tokens=4096, sampling=TALKER_SAMPLING,
        ),
        GraphNode("code2wav", "node"),
    ),
    first="thinker",
    graph=Graph(
        "qwen3-omni",
        (
            text_partition("thinker"),
            partition(
                "talker", (TALKER_PREFILL, Node("talker")), (TALKER_LAST_PREFILL, Node("talker")),
                (TALKER_DECODE, Loop(Node("talker"))), terminal=TALKER_DECODE,
            ),
            partition("code2wav", ("code2wav_chunk", Node("code2wav"))),
            partition("encoder", ("encode", Node("encoder")), driven=False),
        ),
        (
            Connection("thinker", "talker", STATES, Fixed(1), talker_walk, 64),
            Connection("talker", "code2wav", "codes", CODES_POLICY, code2wav_walk, 400),
            # An item has rows of one recording or image, and those for the Thinker's first layers.
            Connection("encoder", "thinker", MEDIA, Fixed(1), capacity=64),
        ),
    ),
    audio="code2wav",
    audio_needs_states=True,
    voices=("ethan", "chelsie", "aiden"),
    question="<|im_start|>user\nSay good day.<|im_end|>\n<|im_start|>assistant\n",
    architecture="Qwen3OmniMoeForConditionalGeneration",
    names=("Qwen/Qwen3-Omni-30B-A3B-Instruct",),
)  # fmt: skip
SPEECH_DEMO = GraphModel(
    name="speech-demo",
    nodes=(
        GraphNode("recognizer", "node", model="whisper-tiny.en"),
        GraphNode("llm", "engine", model="smollm2-135m-instruct", prefill_walks=(PREFILL,)),
        GraphNode("speaker", "node", model="hibari-heart"),
    ),
    first="llm",
    graph=Graph(
        "speech-demo",
        (
            partition("recognizer", ("recognize", Node("recognizer")), driven=False),
            text_partition("llm"),
            partition("speaker", ("speak", Node("speaker"))),
        ),
        (
            # The text of a recording comes with the request for an answer to it.
            Connection("llm", "speaker", "text", Fixed(1), speak_walk, 256),
        ),
    ),
    audio="speaker",
    recognizer="recognizer",
)
# A text is spoken by a decoder whose tokens are codes of sound, seven to a frame. A frame is heard with one before it
# and two after it. Prompt and settings are those of its makers' example.
ORPHEUS_SPEECH = SpeechPrompt(
    "<custom_token_3><|begin_of_text|>", "<|eot_id|><custom_token_4><custom_token_5><custom_token_1>"
)
ORPHEUS_VOICES = ("tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe")
ORPHEUS = GraphModel(
    name="orpheus",
    nodes=(
        GraphNode(
            "llm", "engine", prefill_walks=(PREFILL,), max_tokens=8192,
            sampling=(("temperature", 0.6), ("top_p", 0.8), ("repetition_penalty", 1.3)),
        ),
        GraphNode("snac", "node"),
    ),
    first="llm",
    graph=Graph(
        "orpheus",
        (text_partition("llm"), partition("snac", ("snac_window", Node("snac")))),
        (Connection("llm", "snac", "codes", SlidingWindow(28, 7), snac_walk, 256),),
    ),
    audio="snac",
    speech=ORPHEUS_SPEECH,
    voices=ORPHEUS_VOICES,
    question="".join(ORPHEUS_SPEECH.of("Good day.", ORPHEUS_VOICES[0])),
    architecture="OrpheusSnac",
)  # fmt: skip
# For tests, and for demonstrations without downloads: the text of any model, spoken as tones. Its directory says so in
# `architectures` of config.json.
TINY_SPEECH = GraphModel(
    name="tiny-speech",
    nodes=(GraphNode("llm", "engine", prefill_walks=(PREFILL,)), GraphNode("speaker", "node")),
    first="llm",
    graph=Graph(
        "tiny-speech",
        (text_partition("llm"), partition("speaker", ("speak", Node("speaker")))),
        (Connection("llm", "speaker", "text", Fixed(1), speak_walk, 256),),
    ),
    audio="speaker",
    architecture="TinySpeech",
)
MODELS = (QWEN3_OMNI, ORPHEUS, SPEECH_DEMO, TINY_SPEECH)
GRAPHS: Mapping[str, GraphModel] = MappingProxyType({one.name: one for one in MODELS})


def graph_named(name: str) -> GraphModel | None:
    """Return the model of several stages with this name, if there is one."""
    return next((graph for graph in GRAPHS.values() if name in (graph.name, *graph.names)), None)


def graph_of_architectures(architectures: object) -> GraphModel | None:
    """Return the model that a config.json's `architectures` names, if it is one of these."""
    listed = architectures if isinstance(architectures, list) else []
    return next((graph for graph in GRAPHS.values() if graph.architecture in listed), None)
