# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers that die, fall silent or are replaced."""

from stream_world import EDGE, RUN, StreamWorld, WorldWorker, a_buffer, item, pair, read

from pontil.runtime.stages.graph.policies import LeftContext
from pontil.runtime.stages.graph.stream_buffer import StreamPosition
from pontil.runtime.stages.streams.producer_stream import ProducerStream
from pontil.runtime.wire.messages import Inputs, StreamItem


def test_a_run_that_does_not_come_is_refused() -> None:  # C14
    world, _, consumer = pair()
    consumer.input(a_buffer(), "p")
    world.settle(lambda: bool(consumer.receiver.starved))
    starved = consumer.receiver.starved[0]
    assert (starved.lost, starved.next_index, starved.edge) == ("p", 0, EDGE) and world.now >= 60


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


def test_a_worker_whose_attempt_was_cancelled_is_not_waited_for() -> None:  # C14
    """The prefill worker of a pair gave the whole answer and is lost; the other one was never to make an item."""
    world, prefilled, consumer = pair()
    cancelled = world.worker("d")
    output, buffer = prefilled.output(), a_buffer()
    cancelled.output()
    consumer.input(buffer, "p", "d")
    world.turn()
    output.emit(0, "speak", item(0))
    output.finish(1)
    del world.workers["p"]
    consumer.receiver.lose("p", "its link was silent")
    cancelled.sender.end("r.talker", 1, world.now)
    world.settle(lambda: bool(consumer.receiver.starved))
    assert [one.lost for one in consumer.receiver.starved] == ["p"] and world.now < 7.0


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
    """Items that have arrived are not sent again, and still count for the window."""
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


def test_a_consumer_that_hands_over_takes_nothing_back() -> None:  # E13
    """The next worker of the attempt has not said yet what it was handed; a later attempt begins again."""
    world, producer, consumer = pair()
    output, buffer = producer.output(window=8), a_buffer(capacity=8)
    consumer.input(buffer, "p")
    for index in range(10):
        output.emit(index, "speak", item(index))
        world.turn()
        if index == 2:
            assert read(buffer) == [0, 1, 2]
    assert (output.consumed, output.ahead) == (3, 7)
    world.worker("e").input(a_buffer(capacity=8), "p")
    world.turn()
    consumer.receiver.close("r.code2wav", 1, False, world.now)
    world.turn()
    assert list(output.subscriptions) == ["e"] and (output.consumed, output.ahead) == (3, 7)
    world.worker("f").input(a_buffer(capacity=8), "p", attempt=2)
    world.turn()
    assert list(output.subscriptions) == ["f"] and output.consumed == 0 and output.is_full


def test_a_silent_consumer_loses_its_blocks() -> None:
    world, producer, consumer = pair()
    producer.output().emit(0, "speak", item(0))
    consumer.input(a_buffer(), "p")
    world.turn()
    consumer.connector.ended.clear()
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


def full_pair() -> tuple[StreamWorld, WorldWorker, WorldWorker, ProducerStream]:
    """A pair of which the producer waits for its consumer, which has run nothing yet."""
    world, producer, consumer = pair()
    output = producer.output(window=2)
    consumer.input(a_buffer(), "p")
    output.emit(0, "speak", item(0))
    output.emit(1, "speak", item(1))
    world.turn()
    assert output.is_full
    return world, producer, consumer, output


def test_a_finished_consumer_frees_its_producer() -> None:
    world, producer, consumer, output = full_pair()
    consumer.receiver.close("r.code2wav", 1, True, world.now)
    world.turn()
    assert not output.is_full and producer.is_clean
    output.emit(2, "speak", item(2))
    assert producer.is_clean and not output.is_full


def test_the_proxy_frees_a_producer_whose_consumer_died_as_it_ended() -> None:
    world, producer, _, output = full_pair()
    del world.workers["c"]
    world.turn(1000.0)
    assert output.is_full
    for _ in range(2):
        producer.sender.unread(RUN, EDGE)
        producer.sender.unread("another", EDGE)
        output.emit(2, "speak", item(2))
        assert producer.is_clean and not output.is_full


def test_an_edge_is_read_again_after_its_reader_had_ended() -> None:
    """A stage is computed again by another request, whose attempts count anew."""
    world, producer, consumer = pair()
    consumer.input(a_buffer(), "p")
    producer.output().emit(0, "speak", item(0))
    world.turn()
    consumer.receiver.close("r.code2wav", 1, True, world.now)
    world.turn()
    producer.sender.unread(RUN, EDGE)
    again, buffer = producer.output(attempt=2), a_buffer()
    again.emit(0, "speak", item(0))
    again.finish(1)
    consumer.input(buffer, "p", attempt=0)
    world.turn()
    assert read(buffer) == [0] and buffer.finished


def test_an_attempt_makes_what_is_missing_before_what_is_kept() -> None:
    """The worker that made the first items is gone, and the one with the others makes them all."""
    world, producer, consumer = pair()
    output, buffer = producer.output(first_index=2, window=2), a_buffer(capacity=2)
    output.emit(2, "speak", item(2))
    output.emit(3, "speak", item(3))
    assert output.is_full
    again = producer.output(attempt=2, window=2)
    consumer.input(buffer, "p")
    for index in range(2):
        assert not again.is_full
        again.emit(index, "speak", item(index))
    assert again.is_full
    found = list[int]()
    for _ in range(6):
        world.turn()
        found += read(buffer)
    assert found == [0, 1, 2, 3]


def test_a_later_attempt_of_a_stage_that_had_ended_gets_all_items() -> None:
    """E15: the end of an attempt may be lost on its way to the proxy."""
    world, producer, consumer = pair()
    output, buffer = producer.output(window=20), a_buffer(capacity=20)
    consumer.input(a_buffer(capacity=20), "p")
    for index in range(3):
        output.emit(index, "speak", item(index))
    world.turn()
    consumer.receiver.close("r.code2wav", 1, True, world.now)
    world.turn()
    assert producer.is_clean
    consumer.input(buffer, "p", attempt=2)
    world.settle(lambda: bool(consumer.receiver.starved))
    again = producer.output(attempt=2, window=20)
    consumer.receiver.inputs(Inputs("px", "c", "r.code2wav", 2, EDGE, [["p", "ipc:///p"]]), world.now)
    for index in range(3):
        again.emit(index, "speak", item(index))
    again.finish(3)
    world.turn()
    assert read(buffer) == [0, 1, 2] and buffer.finished


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
