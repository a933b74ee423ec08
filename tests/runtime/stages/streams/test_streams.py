# SPDX-License-Identifier: Apache-2.0
"""Items from producers to consumers: each arrives once and whole, at the worker of its walk."""

import numpy as np
import pytest
from stream_world import BLOCK, RUN, a_buffer, item, pair, read

from pontil.runtime.stages.graph.policies import LeftContext
from pontil.runtime.stages.graph.stream_buffer import StreamPosition
from pontil.runtime.wire.messages import Unsubscribe


def test_items_arrive_in_order_and_leave_nothing_behind() -> None:
    world, producer, consumer = pair()
    output, buffer = producer.output(), a_buffer()
    consumer.input(buffer, "p")
    numbers = list[int]()
    for index in range(20):
        assert not output.is_full
        output.emit(index, "speak", item(index))
        world.turn()
        numbers += read(buffer)
        world.turn()
    output.finish(20)
    world.turn()
    numbers += read(buffer)
    assert numbers == list(range(20)) and buffer.finished
    consumer.receiver.close("r.code2wav", 1, True, world.now)
    world.turn()
    producer.sender.release(RUN)
    assert producer.is_clean and consumer.is_clean and not producer.sender.streams


@pytest.mark.parametrize("count", [0, 1, 2])  # E11
def test_short_streams_end(count: int) -> None:
    world, producer, consumer = pair()
    output, buffer = producer.output(), a_buffer(LeftContext(5, 2))
    for index in range(count):
        output.emit(index, "speak", item(index))
    output.finish(count)
    consumer.input(buffer, "p")
    world.turn()
    assert read(buffer) == list(range(count)) and buffer.finished


def test_an_item_of_many_blocks_is_whole() -> None:
    world, producer, consumer = pair()
    output, buffer = producer.output(), a_buffer()
    rows = producer.memory.most_item_bytes // 64
    output.emit(0, "speak", item(7, rows))
    output.emit(1, "speak", np.zeros((0, 16), np.int32))
    consumer.input(buffer, "p")
    world.turn()
    chunk = buffer.pop()
    assert chunk is not None and np.array_equal(chunk.items[0], item(7, rows))  # type: ignore[arg-type]
    world.turn()
    empty = buffer.pop()
    assert empty is not None and np.array_equal(empty.items[0], np.zeros((0, 16)))  # type: ignore[arg-type]


def test_a_slow_consumer_stops_its_producer_and_memory_stays_flat() -> None:  # E13
    world, producer, consumer = pair()
    output, buffer = producer.output(window=8), a_buffer(capacity=8)
    consumer.input(buffer, "p")
    made = 0
    for _ in range(100):
        while not output.is_full:
            output.emit(made, "speak", item(made))
            made += 1
        world.turn(0.1)
    assert made == 8 and len(buffer.items) == 8 and producer.memory.kept == 8 * 64
    assert len(producer.memory.free) == producer.memory.capacity and consumer.is_clean
    chunk = buffer.pop()
    assert chunk is not None
    buffer.record(chunk)
    world.turn()
    assert not output.is_full


@pytest.mark.parametrize("read_before", [0, 3, 17])
def test_a_consumer_that_begins_again_hears_of_as_many_walks_as_it_has_room_for(read_before: int) -> None:  # E13
    """Each item is for another walk than the one before."""
    world, producer, consumer = pair()
    output, first, again = producer.output(window=4), a_buffer(capacity=4), a_buffer(capacity=4)
    consumer.input(first, "p")
    made, numbers, count = 0, list[int](), 20
    while len(numbers) < read_before:
        while made < count and not output.is_full:
            output.mark(made, f"walk {made}")
            output.emit(made, f"walk {made}", item(made))
            made += 1
        world.turn()
        numbers += read(first)
    consumer.receiver.close("r.code2wav", 1, False, world.now)
    for index in range(made, count):
        output.mark(index, f"walk {index}")
        output.emit(index, f"walk {index}", item(index))
    output.finish(count)
    consumer.input(again, "p", attempt=2)
    numbers.clear()
    for _ in range(count):
        world.turn()
        numbers += read(again)
        assert not consumer.receiver.failed
    assert numbers == list(range(count)) and again.finished


def test_a_producer_without_a_reader_keeps_up_to_its_window() -> None:
    _, producer, _ = pair()
    output = producer.output(window=8)
    for index in range(8):
        output.emit(index, "speak", item(index))
    assert output.is_full and len(producer.memory.free) == producer.memory.capacity


def test_items_wait_for_free_blocks() -> None:
    """Items of one stream never take all blocks, and those that wait are sent as others are acknowledged."""
    world, producer, consumer = pair(total=4 * 16 * BLOCK)
    output, buffer = producer.output(window=64), a_buffer(capacity=64)
    for index in range(64):
        output.emit(index, "speak", item(index, rows=2))
    consumer.input(buffer, "p")
    world.turn()
    assert len(producer.memory.free) >= producer.memory.half
    world.settle(lambda: len(buffer.items) == 64)
    assert read(buffer) == list(range(64))


def test_walks_say_which_worker_gets_an_item() -> None:  # E4
    world, producer, prefill = pair()
    decode = world.worker("d")
    output = producer.output(window=16)
    first, second = a_buffer(hosted=["read"]), a_buffer(hosted=["speak"])
    prefill.input(first, "p", walks=["read"])
    other = decode.input(second, "p", walks=["speak"], awaits_handoff=True)
    for index in range(6):
        output.emit(index, "read" if index < 4 else "speak", item(index))
    output.mark(4, "speak")
    world.turn()
    assert read(first) == [0, 1, 2, 3] and first.next_walk == "speak" and not read(second)
    second.hear(StreamPosition(4, "read"))
    world.turn()
    assert read(second) == [4, 5]
    world.turn()
    assert not other.awaits_handoff and output.consumed == 6


def test_a_subscription_may_come_before_its_run() -> None:
    world, producer, consumer = pair()
    buffer = a_buffer()
    consumer.input(buffer, "p")
    world.turn(1.0)
    output = producer.output()
    output.emit(0, "speak", item(0))
    output.finish(1)
    world.turn()
    assert read(buffer) == [0] and buffer.finished


def test_a_consumer_can_take_on_all_walks() -> None:
    """A decode worker whose handoff failed computes the prompt itself."""
    world, producer, consumer = pair()
    output = producer.output()
    for index in range(4):
        output.emit(index, "read" if index < 2 else "speak", item(index))
    consumer.input(a_buffer(hosted=["speak"]), "p", walks=["speak"], awaits_handoff=True)
    world.turn()
    buffer = a_buffer()
    consumer.input(buffer, "p")
    world.network = [one for one in world.network if not isinstance(one, Unsubscribe)]
    world.turn()
    assert read(buffer) == [0, 1, 2, 3]


def test_a_worker_that_waits_gets_no_more_than_a_window() -> None:
    """E13: its stage's other worker may be far ahead, and it reads nothing before the handoff."""
    world, producer, prefill = pair()
    decode = world.worker("d")
    output = producer.output(window=2)
    first, second = a_buffer(capacity=2), a_buffer(capacity=2)
    prefill.input(first, "p")
    other = decode.input(second, "p")
    done = list[int]()
    for index in range(9):
        output.emit(index, "speak", item(index))
        for _ in range(3):
            world.turn()
            done += read(first)
    assert done == list(range(9)) and other.fault is None
    late = list[int]()
    for _ in range(20):
        world.turn()
        late += read(second)
    assert late == done


def test_a_window_of_one_chunk_is_enough_for_any_context() -> None:
    world, producer, consumer = pair()
    output, buffer = producer.output(window=4), a_buffer(LeftContext(4, 3), capacity=4)
    consumer.input(buffer, "p")
    numbers, made = list[int](), 0
    for _ in range(8):
        while not output.is_full:
            output.emit(made, "speak", item(made))
            made += 1
        world.turn()
        numbers += read(buffer)
        world.turn()
    assert numbers == list(range(32))


def test_seats_are_limited_by_what_has_to_be_kept() -> None:
    _, producer, _ = pair(total=1 << 20)
    memory = producer.memory
    assert memory.keepable == (1 << 20) * 3 // 4
    assert memory.seats_for(16 << 10, 4) == 12 and memory.seats_for(16 << 10, 49) == 0
