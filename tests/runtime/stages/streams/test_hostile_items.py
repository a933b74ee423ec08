# SPDX-License-Identifier: Apache-2.0
"""Peers that announce, send or acknowledge what cannot be: nothing is allocated for it, and nothing wrong arrives."""

from dataclasses import replace

import pytest
from stream_world import EDGE, RUN, a_buffer, item, pair, read, spoiled

from pontil.runtime.stages.streams.producer_link import MOST_DAMAGED
from pontil.runtime.stages.streams.stream_sender import MOST_EARLY
from pontil.runtime.transfer.connector import PullResult
from pontil.runtime.wire.messages import ProducerDone, StreamAck, StreamItem, Subscribe, Subscribed


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


def test_a_wrong_secret_reads_nothing() -> None:
    world, producer, consumer = pair()
    producer.output().emit(0, "speak", item(0))
    stream = consumer.input(a_buffer(), "p", secret="ac")
    world.turn()
    assert "secret" in str(stream.links["p"].lost)
    assert not any(isinstance(one, StreamItem) for one in world.delivered)
    assert consumer.receiver.starved


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
