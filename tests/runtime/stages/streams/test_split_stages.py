# SPDX-License-Identifier: Apache-2.0
"""Streams between stages whose prefill and decode are on different workers, on either side, with a death at any point:
every item is consumed once, in order, and by the worker of its walk."""

from dataclasses import dataclass, field

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_world import EDGE, RUN, StreamWorld, WorldWorker, a_buffer, item, read

from pontil.runtime.stages.graph.policies import Fixed
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer, StreamPosition
from pontil.runtime.wire.messages import Inputs

READ, SPEAK = "read", "speak"
STEPS = ("prompt", "answer", "consume", "deliver", "later", "lose", "repeat", "pull", "wait", "turn")
FAULTS = ("prefill producer", "decode producer", "decode consumer")


@dataclass
class SplitStory:
    """`prompt` items of the walk READ, then `answer` items of SPEAK. The prefill producer makes the first, the decode
    producer the rest; once one has died, a third worker makes all of them. The prefill consumer runs READ and hands its
    position over; a decode consumer that dies begins again with all walks."""

    prompt: int
    answer: int
    world: StreamWorld = field(default_factory=StreamWorld)
    consumed: list[int] = field(default_factory=list)
    position: StreamPosition = StreamPosition()
    made: dict[str, int] = field(default_factory=dict)
    producers: list[str] = field(default_factory=lambda: ["p", "d"])
    attempt: int = 1
    # The producing request has ended: nobody but the consumers can know that items are missing.
    is_over: bool = False

    def __post_init__(self) -> None:
        for name in ("p", "d", "x", "y"):
            self.world.worker(name)
        self.outputs = {"p": self.world.workers["p"].output(), "d": self.world.workers["d"].output(1, self.prompt)}
        self.made = {"p": 0, "d": self.prompt}
        self.reader, self.speaker = (
            a_buffer(Fixed(2), last_walk=SPEAK, hosted=[READ]),
            a_buffer(Fixed(2), last_walk=SPEAK, hosted=[SPEAK]),
        )
        self.x.input(self.reader, *self.producers, walks=[READ])
        self.y.input(self.speaker, *self.producers, walks=[SPEAK], awaits_handoff=True)

    @property
    def total(self) -> int:
        return self.prompt + self.answer

    @property
    def x(self) -> WorldWorker:
        return self.world.workers["x"]

    @property
    def y(self) -> WorldWorker:
        return self.world.workers["z" if "z" in self.world.workers else "y"]

    def make(self, name: str) -> None:
        """Make the next item of a producer, unless it is dead, done or must wait."""
        end = self.prompt if name == "p" else self.total
        if name not in self.outputs or self.outputs[name].is_full:
            return
        index, output = self.made[name], self.outputs[name]
        if index < end:
            if index == self.prompt > 0:
                output.mark(index, SPEAK)
            output.emit(index, READ if index < self.prompt else SPEAK, item(index))
            self.made[name] += 1
        elif name == "p":
            output.hand_over(end)
        else:
            output.finish(end)
            self.is_over = True

    def consume(self) -> None:
        buffers: list[StreamBuffer] = [self.speaker] if self.position.index else [self.reader, self.speaker]
        for buffer in buffers:
            numbers = read(buffer)
            assert numbers == list(range(len(self.consumed), len(self.consumed) + len(numbers)))
            self.consumed += numbers
        if self.attempt == 1 and not self.position.index and self.reader.leaves == SPEAK:
            # The handoff.
            self.position = self.reader.ran
            self.speaker.hear(self.position)
            self.x.receiver.close("r.code2wav", 1, False, self.world.now)

    def fault(self, fault: str) -> None:
        if fault == "decode consumer" and self.attempt == 1:
            self.attempt, self.position = 2, StreamPosition()
            self.world.workers.pop("y")
            self.x.receiver.close("r.code2wav", 1, False, self.world.now)
            self.consumed.clear()
            self.reader = self.speaker = a_buffer(Fixed(2), last_walk=SPEAK)
            self.world.worker("z").input(self.speaker, *self.producers, attempt=2)
        name = fault[0]
        if fault.endswith("producer") and name in self.world.workers:
            del self.world.workers[name], self.outputs[name]
            for consumer in {id(one): one for one in (self.x, self.y)}.values():
                consumer.receiver.lose(name, "its process has ended")

    def recompute(self) -> None:
        """Make all items once more on another worker, as the conductor does when a consumer is starved."""
        if "q" not in self.world.workers:
            self.outputs["q"], self.made["q"] = self.world.worker("q").output(attempt=2), 0
            self.producers = ["q"]
        for worker in (self.x, self.y):
            worker.receiver.starved.clear()
            named = [[name, "ipc:///q"] for name in self.producers]
            inputs = Inputs("px", worker.name, "r.code2wav", self.attempt, EDGE, named)
            worker.receiver.inputs(inputs, self.world.now)

    def network(self, step: str, place: int) -> None:
        messages = self.world.network
        if step == "wait":
            self.world.now += 0.7
        elif step == "pull":
            self.x.connector.finish()
            self.y.connector.finish()
        elif step == "turn":
            for worker in list(self.world.workers.values()):
                worker.turn()
        elif messages:
            place = 0 if step == "deliver" else place % len(messages)
            if step == "lose":
                messages.pop(place)
            else:
                messages += [messages[place]] * (step == "repeat")
                self.world.deliver(place)

    def step(self, step: str, place: int) -> None:
        if step == "consume":
            self.consume()
        elif step in ("prompt", "answer"):
            for name in list(self.outputs):
                if name == "q" or name == ("p" if step == "prompt" else "d"):
                    self.make(name)
        else:
            self.network(step, place)

    def end(self) -> None:
        for _ in range(150):
            if len(self.consumed) == self.total and self.speaker.finished:
                break
            for name in list(self.outputs):
                for _ in range(4):
                    self.make(name)
            self.world.turn(0.5)
            # The proxy replaces a producer whose request is open in any case.
            died = "d" not in self.outputs or ("p" not in self.outputs and self.made["p"] < self.prompt)
            if self.x.receiver.starved or self.y.receiver.starved or (died and not self.is_over):
                self.recompute()
            self.consume()
        assert self.consumed == list(range(self.total)) and self.speaker.finished
        for worker in self.world.workers.values():
            assert not worker.receiver.failed
            worker.receiver.close("r.code2wav", self.attempt, True, self.world.now)
        self.world.turn()
        for worker in self.world.workers.values():
            worker.sender.release(RUN)
            assert worker.is_clean, worker.name


steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 30)), max_size=80)


@settings(max_examples=examples(24, 120), deadline=None)
@given(st.integers(1, 5), st.integers(0, 5), st.lists(st.tuples(steps, st.sampled_from(FAULTS)), max_size=2), steps)
def test_split_stages_lose_nothing(
    prompt: int, answer: int, parts: list[tuple[list[tuple[str, int]], str]], rest: list[tuple[str, int]]
) -> None:  # E4 E9 E14 E15
    story = SplitStory(prompt, answer)
    for some, fault in [*parts, (rest, "")]:
        for step, place in some:
            story.step(step, place)
        if fault:
            story.fault(fault)
    story.end()
