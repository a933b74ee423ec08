# SPDX-License-Identifier: Apache-2.0
"""Items from producers to consumers: each arrives once and whole, from whichever worker has it."""

from dataclasses import replace

import numpy as np
import pytest
from stream_world import BLOCK, EDGE, RUN, StreamWorld, WorldWorker, a_buffer, item, read, spoiled

from pontil.runtime.graph.policies import LeftContext
from pontil.runtime.graph.stream_buffer import StreamPosition
from pontil.runtime.streams.producer_link import MOST_DAMAGED
from pontil.runtime.streams.stream_sender import MOST_EARLY
from pontil.runtime.transfer.connector import PullResult
from pontil.runtime.wire.messages import Inputs, ProducerDone, StreamAck, StreamItem, Subscribe, Subscribed, Unsubscribe


def pair(total: int = 1 << 16) -> tuple[StreamWorld, WorldWorker, WorldWorker]:
    world = StreamWorld()
    return world, world.worker("p", total), world.worker("c", total)


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


def test_subscriptions_that_come_early_are_bounded() -> None:
    world, producer, _ = pair()
    early = Subscribe("c", "p", RUN, EDGE, "ab", "r.code2wav", 1)
    for message in (
        replace(early, walks=["w" * 99] * 99),
        *(replace(early, run=f"r{n}") for n in range(MOST_EARLY + 1)),
    ):
        producer.sender.take(message, world.now)
    refused = [one for one in world.network if isinstance(one, Subscribed) and one.reason]
    assert [one.run for one in refused] == [RUN, f"r{MOST_EARLY}"] and len(producer.sender.early) == MOST_EARLY
    producer.sender.release("r0")
    producer.sender.take(replace(early, run="r0"), world.now)
    assert isinstance(last := world.network[-1], Subscribed) and last.reason == "the run has ended"


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


def test_a_run_that_does_not_come_is_refused() -> None:  # C14
    world, _, consumer = pair()
    consumer.input(a_buffer(), "p")
    world.settle(lambda: bool(consumer.receiver.starved))
    starved = consumer.receiver.starved[0]
    assert (starved.lost, starved.next_index, starved.edge) == ("p", 0, EDGE) and world.now >= 60


def test_a_wrong_secret_reads_nothing() -> None:
    world, producer, consumer = pair()
    producer.output().emit(0, "speak", item(0))
    stream = consumer.input(a_buffer(), "p", secret="ac")
    world.turn()
    assert "secret" in str(stream.links["p"].lost)
    assert not any(isinstance(one, StreamItem) for one in world.delivered)
    assert consumer.receiver.starved


def test_a_producer_that_does_not_answer_is_given_up() -> None:  # C14
    world, _, consumer = pair()
    consumer.input(a_buffer(), "nobody")
    world.settle(lambda: bool(consumer.receiver.starved))
    assert 5.0 <= world.now < 7.0


def test_another_producer_makes_what_is_missing() -> None:
    """The second producer makes all items again; those that are here are dropped by their index."""
    world, producer, consumer = pair()
    output, buffer = producer.output(window=20), a_buffer(capacity=20)
    stream = consumer.input(buffer, "p")
    for index in range(5):
        output.emit(index, "speak", item(index))
    world.turn()
    assert read(buffer)[:3] == [0, 1, 2]
    del world.workers["p"]
    consumer.receiver.lose("p", "its process has ended")
    world.turn()
    assert [one.lost for one in consumer.receiver.starved] == ["p"]
    second = world.worker("q")
    again = second.output(attempt=2, window=20)
    consumer.receiver.inputs(Inputs("px", "c", "r.code2wav", 1, EDGE, [["q", "ipc:///q"], ["bad"]]), world.now)
    for index in range(8):
        again.emit(index, "speak", item(index))
    again.finish(8)
    world.turn()
    assert read(buffer) == [5, 6, 7] and buffer.finished and list(stream.links) == ["q"]


def test_an_attempt_on_the_same_worker_goes_on_with_the_items() -> None:
    world, producer, consumer = pair()
    output, buffer = producer.output(), a_buffer()
    consumer.input(buffer, "p")
    output.emit(0, "speak", item(0))
    world.turn()
    kept = producer.memory.kept
    again = producer.output(attempt=2)
    again.emit(0, "speak", item(0))
    assert producer.memory.kept == kept
    again.emit(1, "speak", item(1))
    world.turn()
    assert read(buffer) == [0, 1]


def test_a_lost_producer_is_not_missed_if_the_others_have_the_rest() -> None:
    """The prefill worker of a stage may go once its items are here."""
    world, prefill, consumer = pair()
    decode = world.worker("d")
    before, after = prefill.output(), decode.output(first_index=2)
    buffer = a_buffer()
    consumer.input(buffer, "p", "d")
    before.emit(0, "speak", item(0))
    before.emit(1, "speak", item(1))
    world.turn()
    consumer.receiver.lose("p", "its process has ended")
    world.turn(1.0)
    after.emit(2, "speak", item(2))
    after.finish(3)
    world.turn()
    assert not consumer.receiver.starved and read(buffer) == [0, 1, 2] and buffer.finished


def test_a_lost_producer_is_missed_if_the_others_begin_later() -> None:
    world, prefill, consumer = pair()
    decode = world.worker("d")
    prefill.output().emit(0, "speak", item(0))
    decode.output(first_index=2).emit(2, "speak", item(2))
    consumer.input(a_buffer(), "p", "d")
    world.turn()
    consumer.receiver.lose("p", "its process has ended")
    world.turn()
    assert [(one.lost, one.next_index) for one in consumer.receiver.starved] == [("p", 1)]
    world.turn(1.0)
    assert len(consumer.receiver.starved) == 1
    world.turn(10.0)
    assert len(consumer.receiver.starved) == 2, "it is said again as long as nothing is done about it"


def test_a_consumer_that_takes_over_asks_for_what_it_needs() -> None:
    world, producer, consumer = pair()
    output, buffer = producer.output(), a_buffer(LeftContext(2, 1))
    consumer.input(buffer, "p")
    for index in range(6):
        output.emit(index, "speak", item(index))
    world.turn()
    assert read(buffer) == [0, 1, 2, 3, 4, 5]
    second = world.worker("e")
    heir = a_buffer(LeftContext(2, 1))
    heir.hear(StreamPosition(4, "speak", 0))
    second.input(heir, "p", attempt=2)
    world.turn()
    assert list(producer.sender.streams[RUN, EDGE].subscriptions) == ["e"]
    chunk = heir.pop()
    assert chunk is not None and [len(chunk.context), len(chunk.items)] == [1, 2]
    world.turn(3.0)
    assert consumer.receiver.streams[RUN, EDGE].links["p"].lost == "a later attempt reads the edge"


def test_a_producer_that_takes_over_knows_what_its_consumer_has_not_consumed() -> None:
    """What has arrived is not sent again, and still counts for the window."""
    world, producer, consumer = pair()
    output, buffer = producer.output(window=8), a_buffer(capacity=8)
    consumer.input(buffer, "p")
    for index in range(6):
        output.emit(index, "speak", item(index))
    world.turn()
    second = world.worker("q").output(attempt=2, window=8)
    consumer.receiver.inputs(Inputs("px", "c", "r.code2wav", 1, EDGE, [["q", "ipc:///q"]]), world.now)
    world.delivered.clear()
    for index in range(8):
        assert not second.is_full
        second.emit(index, "speak", item(index))
    world.turn()
    sent = [one.index for one in world.delivered if isinstance(one, StreamItem)]
    assert second.is_full and sent == [6, 7] and read(buffer) == list(range(8))


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


def test_a_silent_consumer_loses_its_blocks() -> None:
    world, producer, consumer = pair()
    producer.output().emit(0, "speak", item(0))
    consumer.input(a_buffer(), "p")
    world.turn()
    consumer.connector.done.clear()
    del world.workers["c"]
    producer.sender.streams[RUN, EDGE].emit(1, "speak", item(1))
    world.turn()
    assert len(producer.memory.free) < producer.memory.capacity
    world.turn(31.0)
    assert len(producer.memory.free) == producer.memory.capacity


def test_items_of_an_ended_request_are_not_kept_for_ever() -> None:  # C14
    world, producer, consumer = pair()
    producer.output().emit(0, "speak", item(0))
    producer.sender.end("r.talker", 1, world.now)
    world.turn(119.0)
    assert producer.memory.kept
    world.turn(2.0)
    assert producer.is_clean
    stream = consumer.input(a_buffer(), "p")
    world.turn()
    assert "not asked for" in str(stream.links["p"].lost)


def test_a_finished_consumer_frees_its_producer() -> None:
    world, producer, consumer = pair()
    output = producer.output(window=2)
    consumer.input(a_buffer(), "p")
    output.emit(0, "speak", item(0))
    output.emit(1, "speak", item(1))
    world.turn()
    assert output.is_full
    consumer.receiver.close("r.code2wav", 1, True, world.now)
    world.turn()
    assert not output.is_full and producer.is_clean
    output.emit(2, "speak", item(2))
    assert producer.is_clean and not output.is_full


def test_a_lost_unsubscribe_is_said_again() -> None:
    world, producer, consumer = pair()
    output = producer.output(window=2)
    consumer.input(a_buffer(), "p")
    output.emit(0, "speak", item(0))
    output.emit(1, "speak", item(1))
    world.turn()
    consumer.receiver.close("r.code2wav", 1, True, world.now)
    world.network.clear()
    world.settle(lambda: not output.is_full)
    assert world.now < 10 and producer.is_clean


def test_a_damaged_item_is_sent_in_other_blocks() -> None:
    world, producer, consumer = pair()
    buffer, spoils = a_buffer(), iter([True, True])
    consumer.connector.spoil = lambda result: spoiled(result) if next(spoils, False) else result
    producer.output().emit(0, "speak", item(0))
    consumer.input(buffer, "p")
    world.settle(lambda: bool(buffer.items))
    sent = {one.epoch for one in world.delivered if isinstance(one, StreamItem)}
    assert read(buffer) == [0] and len(sent) == 3
    world.turn()
    assert len(producer.memory.free) == producer.memory.capacity and consumer.is_clean


@pytest.mark.parametrize("fault", ["digest", "epoch", "error"])
def test_a_producer_of_damaged_items_is_given_up(fault: str) -> None:
    def spoil(result: PullResult) -> PullResult:
        changed = {"digest": {"digests": [32]}, "epoch": {"epoch": 9}, "error": {"error": "no bytes came"}}[fault]
        return replace(result, **changed)  # type: ignore[arg-type]

    world, producer, consumer = pair()
    consumer.connector.spoil = spoil
    producer.output().emit(0, "speak", item(0))
    buffer = a_buffer()
    consumer.input(buffer, "p")
    world.settle(lambda: bool(consumer.receiver.starved))
    tries = {one.epoch for one in world.delivered if isinstance(one, StreamItem)}
    assert not buffer.items and len(tries) <= MOST_DAMAGED + 2 and consumer.is_clean


def test_a_pull_without_progress_is_given_up() -> None:
    world, producer, consumer = pair()
    producer.output().emit(0, "speak", item(0))
    buffer = a_buffer()
    consumer.input(buffer, "p")
    for worker in (consumer, producer, consumer):
        worker.turn()
        while world.network:
            world.deliver()
    consumer.turn()
    assert consumer.connector.open and not consumer.is_clean
    world.now += 6.0
    consumer.receiver.poll(world.now)
    assert not consumer.connector.open
    world.settle(lambda: bool(buffer.items))
    assert read(buffer) == [0] and consumer.is_clean


def test_an_item_that_contradicts_the_end_fails_the_request() -> None:
    world, producer, consumer = pair()
    producer.output().finish(1)
    stream = consumer.input(a_buffer(), "p")
    world.turn()
    stream.take(ProducerDone("p", "c", RUN, EDGE, 1, 7), world.now)
    world.turn()
    assert [one[:2] for one in consumer.receiver.failed] == [("r.code2wav", 1)]


GOOD = StreamItem("p", "c", RUN, EDGE, 1, 0, "speak", [1, 16], "int32", 0, 0, [1], [1])


@pytest.mark.parametrize(
    "hostile",
    [
        {"index": -1},
        {"index": 1 << 63},
        {"epoch": -1},
        {"slot": -1},
        {"dtype": "object"},
        {"dtype": "float64"},
        {"shape": [-1, 16]},
        {"shape": [-1, -16]},
        {"shape": [1 << 62, 1 << 62]},
        {"shape": [0, 1 << 62, 1 << 62]},
        {"shape": [1] * 9},
        {"shape": [1, 17]},
        {"block_ids": []},
        {"block_ids": [1, 2]},
        {"digests": []},
        {"shape": [1 << 20, 16], "block_ids": [1] * (1 << 20), "digests": [1] * (1 << 20)},
    ],
)
def test_an_item_that_cannot_be_costs_nothing(hostile: dict[str, object]) -> None:
    world, producer, consumer = pair()
    producer.output()
    stream = consumer.input(a_buffer(), "p")
    world.turn()
    stream.take(replace(GOOD, **hostile), world.now)  # type: ignore[arg-type]
    assert "cannot be" in str(stream.links["p"].lost) and consumer.is_clean and not stream.waiting


@pytest.mark.parametrize("block", [0, -1, 1 << 40])
def test_blocks_that_the_peer_does_not_have_are_not_read(block: int) -> None:
    world, producer, consumer = pair()
    producer.output()
    buffer = a_buffer()
    stream = consumer.input(buffer, "p")
    world.turn()
    stream.take(replace(GOOD, block_ids=[block]), world.now)
    world.turn()
    assert not buffer.items and consumer.is_clean


def test_items_from_a_worker_that_was_not_named_are_ignored() -> None:
    world, producer, consumer = pair()
    producer.output()
    stream = consumer.input(a_buffer(), "p")
    world.turn()
    stream.take(replace(GOOD, sender="x"), world.now)
    assert not stream.waiting and list(stream.links) == ["p"]


def test_strange_acknowledgements_change_nothing() -> None:
    world, producer, consumer = pair()
    output = producer.output()
    output.emit(0, "speak", item(0))
    consumer.input(a_buffer(), "p")
    for worker in (consumer, producer):
        worker.turn()
        world.deliver()
    producer.turn()
    staged = len(producer.memory.free)
    assert staged < producer.memory.capacity
    for ack in (
        StreamAck("x", "p", RUN, EDGE, 1, [0], 0),
        StreamAck("c", "p", RUN, EDGE, 7, [0], 0),
        StreamAck("c", "p", RUN, "other", 1, [0], 0),
        StreamAck("c", "p", RUN, EDGE, 1, [-1, 5, 1 << 70], 0),
        StreamAck("c", "p", RUN, EDGE, 1, [], -1),
    ):
        producer.sender.take(ack, world.now)
    assert len(producer.memory.free) == staged
    producer.sender.take(Subscribe("x", "p", RUN, EDGE, "ab", "r.code2wav", 1, next_index=-5), world.now)
    refusal = world.network[-1]
    assert isinstance(refusal, Subscribed) and refusal.reason and refusal.pool is None


def test_seats_are_limited_by_what_has_to_be_kept() -> None:
    _, producer, _ = pair(total=1 << 20)
    memory = producer.memory
    assert memory.keepable == (1 << 20) * 3 // 4
    assert memory.seats_for(16 << 10, 4) == 12 and memory.seats_for(16 << 10, 49) == 0
