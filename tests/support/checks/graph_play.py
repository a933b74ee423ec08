# SPDX-License-Identifier: Apache-2.0
"""The stages of a random model as workers carry them out, in one process: their tasks and buffers are the real ones,
and a random choice decides what arrives, which task computes, and which one dies."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from random_models import FIRST, Array, HashStage, PlainRun, counts_of, plain_run, random_model, random_text

from pontil.runtime.errors import PontilError
from pontil.runtime.stages.graph.catalog import DECODE, GraphModel, edge_name
from pontil.runtime.stages.graph.connection import Connection
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer
from pontil.runtime.stages.nodes.node import TaskInput
from pontil.runtime.stages.streams.pass_writer import PassWriter
from pontil.runtime.stages.streams.producer_stream import ProducerStream
from pontil.runtime.stages.worker.open_task import OpenTask
from pontil.runtime.wire.messages import NodeTask

DIES, MOST_DEATHS, MOST_STEPS = 0.01, 3, 20_000


class PlayedStream(ProducerStream):
    """A stream whose kept items reach the consumer's buffer when they are delivered, in any order."""

    def __init__(self, connection: Connection, last_walk: str | None) -> None:
        self.connection, self.last_walk = connection, last_walk
        self.items = dict[int, tuple[str | None, Array]]()
        self.emitted_to = 0
        self.last: int | None = None
        self.subscribe_anew()

    def subscribe_anew(self) -> None:
        self.buffer = StreamBuffer(self.connection, self.last_walk)
        self.here = set[int]()

    @property
    def is_full(self) -> bool:
        return self.emitted_to - self.buffer.next_index >= self.connection.capacity

    def emit(self, index: int, walk: str | None, array: Array) -> None:
        self.emitted_to = max(self.emitted_to, index + 1)
        known = self.items.setdefault(index, (walk, array))
        assert known[0] == walk and np.array_equal(known[1], array), "every attempt makes the same item"

    def mark(self, index: int, walk: str) -> None:
        """Leave it out: a stage on one worker learns the same of its items."""

    def finish(self, last_index: int) -> None:
        assert self.last in (None, last_index), "every attempt ends a stream at the same index"
        self.last = last_index

    def deliverable(self) -> list[int]:
        limit = self.buffer.next_index + self.connection.capacity
        return [index for index in self.items if index not in self.here and index < limit]

    def deliver(self, chance: random.Random) -> bool:
        found = self.deliverable()
        if not found or (self.last is not None and chance.random() < 0.1):
            if self.last is None or self.buffer.ends_at is not None:
                return bool(found)
            self.buffer.end(self.last)
            return True
        index = chance.choice(found)
        self.here.add(index)
        self.buffer.put(index, *self.items[index])
        return True


@dataclass
class GraphPlay:
    """One run of a model."""

    model: GraphModel
    text: Sequence[bytes]
    chance: random.Random
    deadly: bool = True
    streams: dict[str, PlayedStream] = field(default_factory=dict)
    tasks: dict[str, OpenTask] = field(default_factory=dict)
    done: dict[str, OpenTask] = field(default_factory=dict)
    walks: dict[str, list[str]] = field(default_factory=dict)
    sounds: list[bytes] = field(default_factory=list)
    spoken: int = 0
    deaths: int = 0

    def __post_init__(self) -> None:
        for one in self.model.graph.connections:
            self.streams[edge_name(one)] = PlayedStream(one, self.model.graph.partition(one.target).last_walk)
        self.writer = PassWriter(self.model.graph, FIRST, self.streams_of(FIRST))
        for node in self.model.nodes[1:]:
            self.begin(node.name)

    def streams_of(self, stage: str) -> dict[str, ProducerStream]:
        return {edge_name(one): self.streams[edge_name(one)] for one in self.model.graph.outgoing(stage)}

    def begin(self, stage: str) -> None:
        """Begin an attempt: it takes all items again, and makes all of its own again."""
        inputs = [self.streams[edge_name(one)] for one in self.model.graph.incoming(stage)]
        for one in inputs:
            one.subscribe_anew()
        heard = len(self.sounds) if stage == self.model.audio else 0
        run = HashStage(self.model, stage).begin(TaskInput(delivered=heard))
        self.walks[stage] = []
        self.tasks[stage] = OpenTask(
            "w", NodeTask("p", "w", stage, self.deaths, stage, delivered=heard), 0.0, run,
            self.model.graph.partition(stage), {edge_name(one.connection): one.buffer for one in inputs},
            PassWriter(self.model.graph, stage, self.streams_of(stage)),
        )  # fmt: skip

    def speak(self) -> bool:
        """Emit the next item of the text, if its consumer has room."""
        if self.spoken > len(self.text) or self.writer.is_full:
            return False
        if self.spoken == len(self.text):
            self.writer.finish()
        else:
            self.writer.write(DECODE, {"text": np.frombuffer(self.text[self.spoken], np.uint8)})
        self.spoken += 1
        return True

    def compute(self, stage: str) -> bool:
        """Do a piece of work of a stage, as NodeWorker does; return whether there was one."""
        task = self.tasks[stage]
        if not task.look(0.0):
            return False
        piece, over = task.compute(0.0)
        if piece is not None:
            task.outputs += 1
            if stage == self.model.audio and task.outputs > len(self.sounds):
                self.sounds.append(piece)
        if over:
            self.walks[stage].append(str(task.walk))
            if task.put_down():
                assert task.writer is not None
                task.writer.finish()
                self.done[stage] = self.tasks.pop(stage)
        return True

    def die(self, stage: str) -> bool:
        self.deaths += 1
        self.tasks.pop(stage, None)
        self.done.pop(stage, None)
        self.begin(stage)
        return True

    def step(self) -> bool:
        """Do one thing that is possible; return whether there is any."""
        stages = [node.name for node in self.model.nodes[1:]]
        if self.deadly and self.tasks and self.deaths < MOST_DEATHS and self.chance.random() < DIES:
            return self.die(self.chance.choice(stages))
        things: list[Callable[[], bool]] = [self.speak]
        things += [partial(one.deliver, self.chance) for one in self.streams.values()]
        things += [partial(self.compute, stage) for stage in self.tasks]
        self.chance.shuffle(things)
        return any(thing() for thing in things)

    def run(self) -> None:
        for _ in range(MOST_STEPS):
            if not self.tasks:
                return
            assert self.step(), f"nothing can go on, and {', '.join(self.tasks)} have not ended"
        raise AssertionError(f"{', '.join(self.tasks)} do not end")


def differences(play: GraphPlay, plain: PlainRun) -> list[str]:
    """Return in which things a run is another one than the plain one."""
    found = list[str]()
    if b"".join(play.sounds) != plain.sound:
        found.append("another sound")
    for stage, task in play.done.items():
        said = task.report(True)
        counts = said.passes, said.walk, said.produced, said.next_index, said.token_counts
        if counts != (right := counts_of(plain, stage)):
            found.append(f"{stage} counts {counts}, not {right}")
        if play.walks[stage] != plain.passes[stage]:
            found.append(f"{stage} ran {play.walks[stage]}, not {plain.passes[stage]}")
    return found


def play_seed(seed: int, deadly: bool = True) -> list[str]:
    """Run the model of a seed as workers do and as a plain function; return the differences."""
    model, chance = random_model(seed), random.Random(seed)
    text = list(random_text(chance))
    play = GraphPlay(model, text, chance, deadly)
    try:
        play.run()
    except (AssertionError, PontilError) as error:
        return [str(error)]
    return differences(play, plain_run(model, text))
