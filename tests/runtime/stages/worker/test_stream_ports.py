# SPDX-License-Identifier: Apache-2.0
"""A worker's ends of streams over real sockets, memory and connectors."""

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import by_default
from open_resources import nothing_left
from served import wait_for
from stream_world import EDGE, RUN, a_buffer, item, read

from pontil.runtime.config.worker_config import Deadlines, WorkerConfig
from pontil.runtime.stages.graph.part import GraphPart, graph_part
from pontil.runtime.stages.graph.policies import LeftContext
from pontil.runtime.stages.worker.stream_ports import IDLE_CONNECTION, StreamPorts
from pontil.runtime.transfer.connector import Pull
from pontil.runtime.transfer.tcp.connector import TcpConnector
from pontil.runtime.wire.links.sockets import PeerClient
from pontil.runtime.wire.messages import Cancel, Inputs, Message, Release
from pontil.runtime.worker.links.worker_sockets import WorkerSockets

KEYS = secrets.token_hex(32)
SECRET = secrets.token_hex(16)
DEADLINE = 60.0
# Turns may pass faster than a loaded machine carries messages: no producer is given up because it is slow to answer.
PATIENT = Deadlines(kv_handshake_timeout=1e9)

BLOCK = 1024


class PortsWorker:
    """The part of a worker that serves its streams. Its clock goes by turns, so that no load makes anything late."""

    def __init__(self, folder: Path, name: str, connector: str, keys: str | None = None) -> None:
        endpoint = "tcp://127.0.0.1:*" if keys else f"ipc://{folder}/{name}"
        config = WorkerConfig(
            name, "node", "cpu", (0,), "m", "m", "", endpoint, kv_connector=connector, keys=keys, stream_memory=1 << 20
        )
        self.name, self.now = name, 0.0
        sockets = WorkerSockets(replace(config, deadlines=PATIENT))
        sockets.incarnation = name
        self.context, self.poller, self.peers_in = sockets.context, sockets.poller, sockets.serve_peers()
        self.ports = StreamPorts(sockets, self.peers_in, BLOCK)

    def turn(self, wait: float = 0.002) -> None:
        self.now += wait
        self.poller.wait(wait)
        for message in self.peers_in.receive_all():
            assert self.ports.take(message, self.now)
        self.ports.poll(self.now)

    def part(self, *producers: "PortsWorker", secret: str = SECRET) -> GraphPart:
        named = tuple((one.name, one.peers_in.endpoint) for one in producers)
        made = GraphPart(RUN, "code2wav", secret, (EDGE,), {EDGE: named} if named else {})
        return graph_part(made.to_wire())

    def close(self) -> None:
        self.ports.close_all()
        self.peers_in.close()
        self.context.destroy(0)
        self.poller.close()
        # Fixtures outlive their tests, and memory ends with the last object that has it.
        del self.ports


def turns(*workers: PortsWorker, until: Any) -> None:
    end = time.monotonic() + DEADLINE
    while not until():
        assert time.monotonic() < end, "it did not come true in time"
        for worker in workers:
            worker.turn()


@pytest.fixture
def all_closed() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture(params=by_default({"shm", "keys"}, ["shm", "tcp", "auto", "keys"]))
def workers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[PortsWorker, PortsWorker]]:
    connector, keys = ("tcp", KEYS) if request.param == "keys" else (request.param, None)
    made = PortsWorker(tmp_path, "p", connector, keys), PortsWorker(tmp_path, "c", connector, keys)
    yield made
    for worker in made:
        worker.close()


@pytest.mark.usefixtures("all_closed")
def test_a_stream_from_worker_to_worker(workers: tuple[PortsWorker, PortsWorker]) -> None:
    producer, consumer = workers
    free = len(producer.ports.memory.free)
    assert producer.ports.is_idle and producer.ports.patience is None
    output = producer.ports.open_output("r.talker", 1, producer.part(), EDGE, window=8)
    buffer = a_buffer(LeftContext(3, 1))
    consumer.ports.open_input("r.code2wav", 1, consumer.part(producer), EDGE, buffer, consumer.now)
    numbers, made = list[int](), 0

    def whole() -> bool:
        nonlocal made
        while made < 40 and not output.is_full:
            output.emit(made, "speak", item(made, rows=made))
            made += 1
        if made == 40:
            output.finish(40)
        numbers.extend(read(buffer) if made else [])
        return buffer.finished

    # The first item has no rows, so that it is not read by its first number.
    output.emit(0, "speak", item(0))
    made = 1
    turns(producer, consumer, until=whole)
    assert numbers == list(range(40))
    assert consumer.ports.counters()["stream_items"] == 40
    assert consumer.ports.counters()["stream_bytes"] == producer.ports.gauges()["stream_kept_bytes"]
    consumer.ports.close("r.code2wav", 1, True, consumer.now)
    turns(producer, consumer, until=lambda: not producer.ports.memory.kept)
    producer.ports.close("r.talker", 1, True, producer.now)
    assert producer.ports.take(Release("px", "p", RUN), producer.now)
    assert producer.ports.is_idle and consumer.ports.is_idle
    assert [len(one.ports.memory.free) for one in workers] == [free, free]


@pytest.mark.parametrize("workers", ["tcp"], indirect=True)
def test_lost_messages_cost_time_and_nothing_else(
    workers: tuple[PortsWorker, PortsWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message goes lost or is repeated in turn, in both directions."""
    producer, consumer = workers
    sent = {"p": 0, "c": 0}

    def lossy(name: str, send: Any) -> Any:
        def relay(peer: str, message: Message) -> bool:
            sent[name] += 1
            return sent[name] % 3 == 0 or (bool(send(peer, message)) and (sent[name] % 2 == 0 or send(peer, message)))

        return relay

    monkeypatch.setattr(producer.ports.outbox, "send", lossy("p", producer.ports.outbox.send))
    monkeypatch.setattr(consumer.ports.peers.outbox, "send", lossy("c", consumer.ports.peers.outbox.send))
    output = producer.ports.open_output("r.talker", 1, producer.part(), EDGE, window=8)
    buffer, numbers = a_buffer(), list[int]()
    consumer.ports.open_input("r.code2wav", 1, consumer.part(producer), EDGE, buffer, consumer.now)
    made = 0

    def whole() -> bool:
        nonlocal made
        while made < 30 and not output.is_full:
            output.emit(made, "speak", item(made))
            made += 1
        if made == 30:
            output.finish(30)
        numbers.extend(read(buffer))
        for worker in workers:
            worker.now += 0.1
        return buffer.finished

    turns(producer, consumer, until=whole)
    assert numbers == list(range(30))


@pytest.mark.parametrize("workers", ["keys"], indirect=True)
def test_a_grant_is_for_its_item_and_secret(
    workers: tuple[PortsWorker, PortsWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of the system that is told where an item lies cannot read it without the run's secret."""
    producer, consumer = workers
    output = producer.ports.open_output("r.talker", 1, producer.part(), EDGE)
    output.emit(0, "speak", item(5))
    buffer = a_buffer()
    stream = consumer.ports.open_input("r.code2wav", 1, consumer.part(producer), EDGE, buffer, consumer.now)
    told = TcpConnector.pull

    def pull(self: TcpConnector, pull: Pull) -> None:
        assert pull.shown is not None and pull.shown.secret == SECRET
        pull.shown = replace(pull.shown, secret="other")
        told(self, pull)

    with monkeypatch.context() as patched:
        patched.setattr(TcpConnector, "pull", pull)
        turns(producer, consumer, until=lambda: bool(stream.links["p"].failures))
    assert not buffer.items
    turns(producer, consumer, until=lambda: bool(buffer.items))
    assert read(buffer) == [5]


@pytest.mark.parametrize("workers", ["tcp"], indirect=True)
def test_a_connection_that_an_older_one_displaced_is_made_anew(workers: tuple[PortsWorker, PortsWorker]) -> None:
    """An older socket to the same address, under our name, reaches the producer after ours: it lets go of ours."""
    producer, consumer = workers
    producer.ports.open_output("r.talker", 1, producer.part(), EDGE).emit(0, "speak", item(0))
    buffer = a_buffer()
    consumer.ports.open_input("r.code2wav", 1, consumer.part(producer), EDGE, buffer, consumer.now)
    consumer.turn()
    lost = wait_for(producer.peers_in.receive_all, DEADLINE, "a subscription")
    older = PeerClient(consumer.context, "c", producer.peers_in.endpoint)
    assert older.send(lost[0])
    wait_for(producer.peers_in.receive_all, DEADLINE, "the older socket's message")
    older.close()

    def arrived() -> bool:
        consumer.now += 0.02
        return bool(buffer.items)

    turns(producer, consumer, until=arrived)
    assert not consumer.ports.starved and consumer.ports.peers["p"].renewal.count


@pytest.mark.parametrize("workers", ["tcp"], indirect=True)
def test_a_producer_whose_port_is_closed_is_missed(workers: tuple[PortsWorker, PortsWorker]) -> None:
    producer, consumer = workers
    producer.ports.open_output("r.talker", 1, producer.part(), EDGE).emit(0, "speak", item(0))
    buffer = a_buffer()
    stream = consumer.ports.open_input("r.code2wav", 1, consumer.part(producer), EDGE, buffer, consumer.now)
    turns(producer, consumer, until=lambda: bool(buffer.items))
    producer.ports.connector.close()

    def missed() -> bool:
        consumer.now += 0.1
        return bool(consumer.ports.starved)

    turns(consumer, until=missed)
    starved = consumer.ports.starved.pop()
    assert (starved.lost, starved.next_index) == ("p", 1) and stream.links["p"].lost and not consumer.ports.peers


@pytest.mark.parametrize("workers", ["shm"], indirect=True)
def test_an_endpoint_that_is_none_starves_its_consumer(workers: tuple[PortsWorker, PortsWorker]) -> None:
    producer, consumer = workers
    part = GraphPart(RUN, "code2wav", SECRET, inputs={EDGE: (("p", "nowhere"),)})
    buffer = a_buffer()
    consumer.ports.open_input("r.code2wav", 1, part, EDGE, buffer, consumer.now)
    turns(consumer, until=lambda: bool(consumer.ports.starved))
    producer.ports.open_output("r.talker", 1, producer.part(), EDGE).emit(0, "speak", item(0))
    inputs = Inputs("px", "c", "r.code2wav", 1, EDGE, [["p", producer.peers_in.endpoint]])
    assert consumer.ports.take(inputs, consumer.now)
    turns(producer, consumer, until=lambda: bool(buffer.items))


@pytest.mark.parametrize("workers", ["shm"], indirect=True)
def test_connections_that_no_stream_needs_are_closed(workers: tuple[PortsWorker, PortsWorker]) -> None:
    producer, consumer = workers
    producer.ports.open_output("r.talker", 1, producer.part(), EDGE).emit(0, "speak", item(0))
    buffer = a_buffer()
    consumer.ports.open_input("r.code2wav", 1, consumer.part(producer), EDGE, buffer, consumer.now)
    turns(producer, consumer, until=lambda: bool(buffer.items))
    assert list(consumer.ports.peers) == ["p"]
    consumer.ports.close("r.code2wav", 1, False, consumer.now)
    consumer.turn()
    consumer.now += IDLE_CONNECTION + 1
    consumer.turn()
    assert not consumer.ports.peers and not consumer.ports.connector.lost()
    producer.ports.release_all()
    assert producer.ports.is_idle
    assert not producer.ports.take(Cancel("px", "p", "r", 1), producer.now)
    assert np.array_equal(buffer.items[0].payload, item(0))  # type: ignore[arg-type]
