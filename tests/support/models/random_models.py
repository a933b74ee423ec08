# SPDX-License-Identifier: Apache-2.0
"""Random models of several stages, from a seed: what runs of them must give, by one plain function for each part.

A model is a stage of text, and behind it a tree of stages of nodes, one of which makes sound. A node makes a running
hash of all that it was ever given, under which walk, in which order: an item, a pass, a walk or a round of a loop that
is lost, repeated or another one makes another sound.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pontil.runtime.stages.graph.catalog import DECODE, PREFILL, GraphModel, GraphNode, edge_name, text_partition
from pontil.runtime.stages.graph.connection import Connection, WalkCallback
from pontil.runtime.stages.graph.graph import Graph
from pontil.runtime.stages.graph.partition import Authority, GraphPartition
from pontil.runtime.stages.graph.policies import ChunkPolicy, Fixed, LeftContext, SlidingWindow
from pontil.runtime.stages.graph.walk import Loop, Node, Parallel, Sequential, Walk, WalkPart, can_stop
from pontil.runtime.stages.nodes.node import AUDIO, NodeInput, Pieces, TaskInput, WalkValues

FIRST, RATE = "llm", 8000
MASK = (1 << 62) - 1
Array = NDArray[Any]
# Items by name, each with those of the context before it.
Given = Mapping[str, tuple[Sequence[Array], Sequence[Array]]]
# The walks, the items and the context of a chunk.
Cut = list[tuple[str | None, range, range]]


def mixed(value: int, *more: int) -> int:
    for one in more:
        value = ((value ^ one) * 0x9E3779B97F4A7C15 + 0x632BE5AB) & MASK
        value ^= value >> 29
    return value


def hash_of(name: str) -> int:
    return crc32(name.encode())


# The language.


def walk_of(walks: Sequence[str]) -> WalkCallback:
    def callback(producer: str, tracked: str | None, number: int) -> str:
        return walks[mixed(hash_of(producer), hash_of(tracked or ""), number // 3) % len(walks)]

    return callback


def random_part(chance: random.Random, nodes: Sequence[str], depth: int) -> WalkPart:
    """Return a part of these nodes; branches that do not wait for each other have nodes of their own."""
    kind = chance.choice(("node", "sequential", "parallel", "loop")) if depth else "node"
    if kind == "sequential":
        return Sequential(tuple(random_part(chance, nodes, depth - 1) for _ in range(chance.randint(1, 3))))
    if kind == "parallel" and len(nodes) > 1:
        middle = chance.randrange(1, len(nodes))
        return Parallel(tuple(random_part(chance, half, depth - 1) for half in (nodes[:middle], nodes[middle:])))
    if kind == "loop":
        body = random_part(chance, nodes, depth - 1)
        return Loop(body, chance.choice((None, 1, 2, 3) if can_stop(body) else (1, 2, 3)))
    return Node(chance.choice(nodes))


def random_partition(chance: random.Random, name: str) -> GraphPartition:
    """Return a partition whose walks end with the node that hands on what the others made."""
    last, nodes = Node(f"{name}.out"), [f"{name}.{letter}" for letter in "abc"[: chance.randint(1, 3)]]
    walks = tuple(
        Walk(f"{name}.{number}", Sequential((random_part(chance, nodes, 2), last)))
        for number in range(chance.randint(1, 3))
    )
    used = tuple(dict.fromkeys(node for walk in walks for node in walk.nodes))
    names = [walk.name for walk in walks]
    if chance.random() < 0.5:
        return GraphPartition(name, used, walks, Authority.PRODUCER_TRIGGERED, terminal=chance.choice(names))
    moves = {one: chance.choice(names) for one in names if chance.random() < 0.8}
    return GraphPartition(name, used, walks, initial=chance.choice(names), transitions=moves)


def random_policy(chance: random.Random) -> ChunkPolicy:
    count = chance.randint(1, 4)
    lead = tuple(chance.randint(1, 3) for _ in range(chance.randint(0, 2)))
    window = SlidingWindow(count, chance.randint(1, count))
    return chance.choice((Fixed(count), window, LeftContext(count, 3), LeftContext(count, 1, lead)))


def random_model(seed: int) -> GraphModel:
    """Return a model of up to five stages of nodes."""
    chance = random.Random(seed)
    names = [f"s{number}" for number in range(chance.randint(1, 5))]
    parts = [random_partition(chance, name) for name in names]
    # Each stage behind one before it; only the first one reads the text. The last one has no consumers: it is heard.
    sources = {name: chance.choice(names[:number]) if number else FIRST for number, name in enumerate(names)}
    links = list[Connection]()
    for part in parts:
        policy, source = random_policy(chance), sources[part.name]
        edges = ["text"] if source == FIRST else [f"{source}-{n}" for n in range(chance.randint(1, 2))]
        drives = [part.is_driven and (not number or chance.random() < 0.5) for number in range(len(edges))]
        callback = walk_of([walk.name for walk in part.walks])
        capacity = policy.largest + chance.randint(0, 4)
        links += (
            Connection(source, part.name, edge, policy, callback if driven else None, capacity)
            for edge, driven in zip(edges, drives, strict=True)
        )
    name = f"random-{seed}"
    return GraphModel(
        name,
        (GraphNode(FIRST, "engine", prefill_walks=(PREFILL,)), *(GraphNode(one, "node") for one in names)),
        FIRST,
        Graph(name, (text_partition(FIRST), *parts), tuple(links)),
        audio=names[-1],
        sample_rate=RATE,
    )


# The nodes: arithmetic that both the workers and the plain runs use.


def flat(array: Array) -> list[int]:
    return [int(one) for one in array.reshape(-1)]


@dataclass
class HashNodes:
    """The nodes of a stage for one task. `running` is each one's hash."""

    stage: str
    edges: tuple[str, ...]
    is_heard: bool
    running: dict[str, int] = field(default_factory=dict)

    def compute(self, node: str, walk: str, given: Given, final: bool) -> tuple[dict[str, Array], bool, list[bytes]]:
        """Return what a node makes by name, whether it stops the loop around it, and its outputs."""
        seen = self.running.get(node, hash_of(node))
        for name in sorted(given):
            for group in given[name]:
                values = [value for array in group for value in (len(array), *flat(array))]
                seen = mixed(seen, hash_of(name), len(values), *values)
        seen = self.running[node] = mixed(seen, hash_of(walk), final)
        made = np.array([mixed(seen, place) >> 1 for place in range(1 + seen % 3)], np.int64)
        if not node.endswith(".out"):
            return {node: made}, mixed(seen, 7) % 3 == 0, []
        # Some passes hand nothing on.
        edges = self.edges if mixed(seen, 5) % 4 else ()
        sounds = [(made & 0x7FFF).astype("<i2").tobytes()] * (mixed(seen, 3) % 3) if self.is_heard else []
        return {edge: made + place for place, edge in enumerate(edges)}, False, sounds


def nodes_of(model: GraphModel, stage: str) -> HashNodes:
    edges = dict.fromkeys(one.edge for one in model.graph.outgoing(stage))
    return HashNodes(stage, tuple(edges), stage == model.audio)


class HashStage:
    """A StageNode of a random model; `spend` is called for each piece of work."""

    identity, kind, sample_rate, one_per_chunk = "hash", AUDIO, RATE, False

    def __init__(self, model: GraphModel, stage: str, spend: Any = lambda: None) -> None:
        self.model, self.stage, self.spend = model, stage, spend

    def begin(self, task: TaskInput) -> "HashTask":
        return HashTask(nodes_of(self.model, self.stage), self.spend)


class HashTask:
    """A NodeRun of a random model."""

    def __init__(self, nodes: HashNodes, spend: Any) -> None:
        self.nodes, self.spend = nodes, spend

    def feed(self, given: NodeInput) -> Pieces:
        self.spend()
        values, stops, sounds = self.nodes.compute(
            given.node, given.walk, {name: given.of(name) for name in given.items}, given.final
        )
        yield None
        yield from sounds
        return WalkValues(values, stops)


# The plain runs.


def plain_cut(walks: Sequence[str | None], policy: ChunkPolicy, last: str | None) -> Cut:
    """Cut a whole stream of items with these walks, without a buffer. Its last chunk is never a full one, and has the
    walk `last` (None: that of its items)."""
    cut = Cut()
    first = since = 0
    is_full = True
    while first < len(walks) or is_full:
        walk = walks[first] if first < len(walks) else last or (walks[-1] if walks else None)
        if first > 0 and walk != walks[first - 1]:
            since = first
        needed = policy.needed(first - since)
        end = next((index for index in range(first, len(walks)) if walks[index] != walk), len(walks))
        end = min(end, first + needed)
        cut.append(
            (walk, range(first, end), range(max(since, first - policy.context(first - since, end - first)), first))
        )
        is_full = end - first == needed or last not in (None, walk)
        first = end
    return cut


@dataclass
class PlainRun:
    """A run: each stage as a whole, after the one that feeds it. `items` are those of each producer's edge, `tags`
    their walks by consumer; `passes` the walks of each stage's passes, and `sound` what is heard."""

    model: GraphModel
    items: dict[tuple[str, str], list[Array]] = field(default_factory=dict)
    tags: dict[str, list[str | None]] = field(default_factory=dict)
    passes: dict[str, list[str]] = field(default_factory=dict)
    sound: bytes = b""

    def emit(self, stage: str, walk: str, number: int, values: Mapping[str, Array]) -> None:
        for one in self.model.graph.outgoing(stage):
            self.items.setdefault((stage, one.edge), [])
        for edge, value in values.items():
            self.items[stage, edge].append(value)
        targets = {one.target for one in self.model.graph.outgoing(stage) if one.edge in values}
        for target in sorted(targets):
            known = self.tags.setdefault(target, [])
            callbacks = [one.callback for one in self.model.graph.incoming(target) if one.callback is not None]
            tracked = known[-1] if known else None
            known.append(callbacks[0](walk, tracked, number) if callbacks else None)

    def run_stage(self, name: str) -> None:
        part, incoming = self.model.graph.partition(name), self.model.graph.incoming(name)
        nodes, walk = nodes_of(self.model, name), part.initial
        cut = plain_cut(self.tags.get(name, []), incoming[0].policy, part.last_walk)
        self.emit(name, "", 0, {})
        for number, (tagged, new, context) in enumerate(cut):
            streams = {one.edge: self.items[one.source, one.edge] for one in incoming}
            given = {
                edge: ([items[index] for index in new], [items[index] for index in context])
                for edge, items in streams.items()
            }
            ran = tagged if part.is_driven else walk
            assert ran is not None
            self.passes.setdefault(name, []).append(ran)
            body = next(one.body for one in part.walks if one.name == ran)
            values, _ = self.run_part(body, nodes, ran, given, number + 1 == len(cut))
            self.emit(name, ran, number, {edge: value for edge, value in values.items() if edge in nodes.edges})
            walk = part.transitions.get(ran, ran)

    def run_part(
        self, part: WalkPart, nodes: HashNodes, walk: str, given: Given, final: bool
    ) -> tuple[dict[str, Array], bool]:
        if isinstance(part, Node):
            values, stops, sounds = nodes.compute(part.name, walk, given, final)
            self.sound += b"".join(sounds)
            return values, stops
        if isinstance(part, Parallel):
            made = [self.run_part(one, nodes, walk, given, final) for one in part.parts]
            return {name: value for values, _ in made for name, value in values.items()}, any(one for _, one in made)
        if isinstance(part, Loop):
            stops, rounds, values = False, 0, dict[str, Array]()
            while not stops and rounds != part.times:
                values, stops = self.run_part(part.body, nodes, walk, given, final)
                given, rounds = {name: ([value], []) for name, value in values.items()}, rounds + 1
            return values, False
        ended, values = False, dict[str, Array]()
        for one in part.parts:
            values, stops = self.run_part(one, nodes, walk, given, final)
            given, ended = {name: ([value], []) for name, value in values.items()}, ended or stops
        return values, ended


def plain_run(model: GraphModel, text: Sequence[bytes]) -> PlainRun:
    """Run a model for a text of these items, in one place and in order."""
    run = PlainRun(model)
    for number, item in enumerate(text):
        run.emit(FIRST, DECODE, number, {"text": np.frombuffer(item, np.uint8)})
    run.items.setdefault((FIRST, "text"), [])
    for node in model.nodes[1:]:
        run.run_stage(node.name)
    return run


# Passes, the walk of the last, items by stream, positions by stream, tokens by stream.
Counts = tuple[int, str, dict[str, int], dict[str, int], dict[str, int]]


def counts_of(plain: PlainRun, stage: str) -> Counts:
    """Return what a stage's reports must add up to."""
    graph, walks = plain.model.graph, plain.passes[stage]
    made = {edge_name(one): plain.items[stage, one.edge] for one in graph.outgoing(stage)}
    taken = {edge_name(one): plain.items[one.source, one.edge] for one in graph.incoming(stage)}
    items, positions = ({edge: len(each) for edge, each in one.items()} for one in (made, taken))
    tokens = {edge: sum(map(len, each)) for edge, each in {**taken, **made}.items()}
    return len(walks), walks[-1], items, positions, tokens


def random_text(chance: random.Random) -> Iterator[bytes]:
    """Yield the items of a text: none, a few or many."""
    for _ in range(chance.choice((0, 1, 2, 3, chance.randrange(40)))):
        yield bytes(chance.randrange(97, 123) for _ in range(chance.randrange(4)))
