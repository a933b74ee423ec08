# SPDX-License-Identifier: Apache-2.0
"""Messages of streams with wrong fields: both workers live, another run has its items, and all memory returns."""

import random

import pytest
from effort import examples
from message_fuzz import Interceptor
from stream_world import EDGE, SECRET, WorldWorker, a_buffer, item, pair, read

from pontil.runtime.stages.graph.part import GraphPart
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer
from pontil.runtime.wire.messages import (
    Inputs,
    Message,
    ProducerDone,
    StreamAck,
    StreamItem,
    StreamMark,
    Subscribe,
    Subscribed,
    Unsubscribe,
)

KINDS = (Subscribe, Subscribed, StreamItem, StreamMark, StreamAck, ProducerDone, Unsubscribe, Inputs)
ITEMS, LEASE = 6, 40.0


def opened(producer: WorldWorker, consumer: WorldWorker, run: str) -> StreamBuffer:
    """Open both ends of a run's edge, and emit all items."""
    output = producer.sender.open(f"{run}.talker", 1, run, EDGE, SECRET, 0, 8)
    for index in range(ITEMS):
        output.emit(index, "speak", item(index))
    output.mark(3, "speak")
    output.finish(ITEMS)
    buffer = a_buffer()
    part = GraphPart(run, "code2wav", SECRET, inputs={EDGE: (("p", "ipc:///p"),)})
    consumer.receiver.open(f"{run}.code2wav", 1, part, EDGE, buffer, consumer.world.now)
    return buffer


def drained(buffer: StreamBuffer) -> None:
    """Consume whatever came, as a node does that is told of wrong items later."""
    while (chunk := buffer.pop()) is not None:
        buffer.record(chunk)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_with_wrong_fields_fails_its_own_stream_only(kind: type[Message]) -> None:
    chance, hits = random.Random(11), 0
    for _ in range(examples(40, 2000)):
        world, producer, consumer = pair()
        wrong = opened(producer, consumer, "wrong")
        interceptor = Interceptor(kind, chance.choice([0, 0, 1, 2]), chance)
        told = Inputs("px", "c", "wrong.code2wav", 1, EDGE, [["p", "ipc:///p"]])
        if kind is Inputs:
            for message in interceptor(told):
                consumer.receiver.inputs(message, world.now)  # type: ignore[arg-type]
        world.change = interceptor
        for _ in range(3):
            world.turn(0.6)
            drained(wrong)
            if kind is Unsubscribe:
                consumer.receiver.close("wrong.code2wav", 1, False, world.now)
        interceptor.is_open = False
        right, numbers = opened(producer, consumer, "right"), list[int]()

        def whole(right: StreamBuffer = right, numbers: list[int] = numbers) -> bool:
            numbers.extend(read(right))
            return right.finished

        world.settle(whole)
        assert numbers == list(range(ITEMS)), "another run suffered"
        for run in ("wrong", "right"):
            consumer.receiver.close(f"{run}.code2wav", 1, True, world.now)
            producer.sender.release(run)
        world.turn(LEASE)
        producer.sender.release("wrong")
        assert producer.is_clean and consumer.is_clean
        hits += bool(interceptor.number < 0)
    assert hits * 4 > examples(40, 2000), "the messages did not come by"
