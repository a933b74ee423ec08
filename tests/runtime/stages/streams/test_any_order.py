# SPDX-License-Identifier: Apache-2.0
"""Streams over a network that loses, repeats and reorders, with workers that die at any point: every item is consumed
once and in order, everything ends, and all memory comes back."""

from dataclasses import dataclass, field

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_world import EDGE, RUN, StreamWorld, WorldWorker, a_buffer, item, read, spoiled

from pontil.runtime.stages.graph.policies import ChunkPolicy, Fixed, LeftContext
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer, StreamPosition
from pontil.runtime.stages.streams.producer_stream import ProducerStream
from pontil.runtime.wire.messages import Inputs

STEPS = ("emit", "read", "deliver", "later", "lose", "repeat", "pull", "spoil", "wait", "turn")
FAULTS = ("consumer", "producer", "same producer", "inputs")


@dataclass
class Story:
    """One edge under a drawn sequence of steps. `consumed` is what the consumers have run, as the next one is told."""

    count: int
    policy: ChunkPolicy
    world: StreamWorld = field(default_factory=StreamWorld)
    consumed: list[int] = field(default_factory=list)
    position: StreamPosition = StreamPosition()
    attempts: list[int] = field(default_factory=lambda: [1, 1])
    producer: WorldWorker = field(init=False)
    consumer: WorldWorker = field(init=False)
    output: ProducerStream = field(init=False)
    buffer: StreamBuffer = field(init=False)
    made: int = 0

    def __post_init__(self) -> None:
        self.producer, self.consumer = self.world.worker("p1"), self.world.worker("c1")
        self.output = self.producer.output(window=8)
        self.listen()

    def listen(self) -> None:
        self.buffer = a_buffer(self.policy)
        self.buffer.hear(self.position)
        self.consumer.input(self.buffer, self.producer.name, attempt=self.attempts[1])

    def emit(self) -> None:
        if self.made < self.count and not self.output.is_full:
            self.output.emit(self.made, "speak", item(self.made))
            self.made += 1
        elif self.made == self.count:
            self.output.finish(self.count)

    def read(self) -> None:
        numbers = read(self.buffer)
        assert numbers == list(range(self.position.index, self.position.index + len(numbers)))
        self.consumed += numbers
        self.position = self.buffer.ran

    def network(self, step: str, place: int) -> None:
        messages = self.world.network
        if step == "wait":
            self.world.now += 0.7
        elif step == "pull":
            self.consumer.connector.finish()
        elif step == "spoil" and self.consumer.connector.open:
            connector = self.consumer.connector
            connector.end(connector.open[0], spoiled(connector.copy(connector.open[0])))
        elif step == "turn":
            for worker in self.world.workers.values():
                worker.turn()
        elif messages and step in ("deliver", "later", "lose", "repeat"):
            place = 0 if step == "deliver" else place % len(messages)
            if step == "lose":
                messages.pop(place)
            else:
                messages += [messages[place]] * (step == "repeat")
                self.world.deliver(place)

    def fault(self, fault: str) -> None:
        self.attempts[0 if "producer" in fault else 1] += 1
        if fault == "consumer":
            del self.world.workers[self.consumer.name]
            self.consumer = self.world.worker(f"c{self.attempts[1]}")
            self.listen()
        elif fault == "producer":
            del self.world.workers[self.producer.name]
            self.producer = self.world.worker(f"p{self.attempts[0]}")
            self.made = 0
            self.output = self.producer.output(self.attempts[0], window=8)
            self.tell()
        elif fault == "same producer":
            self.made = 0
            self.output = self.producer.output(self.attempts[0], window=8)
        else:
            self.attempts[1] -= 1
            self.tell()

    def tell(self) -> None:
        """The proxy's part: say where the items come from now."""
        producers = [[self.producer.name, "ipc:///x"]]
        inputs = Inputs("px", self.consumer.name, "r.code2wav", self.attempts[1], EDGE, producers)
        self.consumer.receiver.inputs(inputs, self.world.now)

    def end(self) -> None:
        """From here on nothing goes wrong."""
        for _ in range(400):
            if self.buffer.finished:
                break
            for _ in range(8):
                self.emit()
            self.world.turn(0.5)
            if self.consumer.receiver.starved:
                self.consumer.receiver.starved.clear()
                self.tell()
            self.read()
        assert self.buffer.finished and self.consumed == list(range(self.count))
        assert not self.consumer.receiver.failed
        self.consumer.receiver.close("r.code2wav", self.attempts[1], True, self.world.now)
        self.producer.sender.end("r.talker", self.attempts[0], self.world.now)
        self.producer.sender.release(RUN)
        self.world.turn()
        assert self.producer.is_clean and self.consumer.is_clean
        assert not self.producer.sender.streams and not self.consumer.receiver.streams


steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 30)), max_size=60)
policies = st.sampled_from([Fixed(1), Fixed(3), LeftContext(4, 2)])


@settings(max_examples=examples(30, 150), deadline=None)
@given(st.integers(0, 14), policies, st.lists(st.tuples(steps, st.sampled_from(FAULTS)), max_size=3), steps)
def test_every_item_is_consumed_once_and_in_order(
    count: int, policy: ChunkPolicy, parts: list[tuple[list[tuple[str, int]], str]], rest: list[tuple[str, int]]
) -> None:  # E3 E4 E13 E15
    story = Story(count, policy)
    for some, fault in [*parts, (rest, "")]:
        for step, place in some:
            if step == "emit":
                story.emit()
            elif step == "read":
                story.read()
            else:
                story.network(step, place)
        if fault:
            story.fault(fault)
    story.end()
