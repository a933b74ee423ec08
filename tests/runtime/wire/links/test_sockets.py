# SPDX-License-Identifier: Apache-2.0
"""The sockets over ipc and tcp: order, routing, back-pressure, unknown peers, and waking a sleeping loop."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest
import zmq

from pontil.runtime.errors import PontilError
from pontil.runtime.wire.codec import encode
from pontil.runtime.wire.links import sockets
from pontil.runtime.wire.links.connection_monitor import Reachability
from pontil.runtime.wire.links.context import Context
from pontil.runtime.wire.links.sockets import (
    BaseSocket,
    ControlServer,
    PeerClient,
    PeerServer,
    Poller,
    WorkerSocket,
    open_context,
)
from pontil.runtime.wire.messages import Cancel, Failed, Goodbye, Message, Tokens

ROOT = Path(__file__).resolve().parents[4]
DEADLINE = 60.0


@pytest.fixture
def context() -> Iterator[Context]:
    context = open_context()
    yield context
    context.destroy(linger=0)


@pytest.fixture(params=["ipc", "tcp"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/control" if request.param == "ipc" else "tcp://127.0.0.1:*"


def tokens(index: int, sender: str = "w1") -> Tokens:
    return Tokens(sender, "p1", "r", 0, index, [0])


def receive(socket: BaseSocket, count: int) -> list[Message]:
    """Return `count` messages, or those that came within the deadline."""
    poller = Poller()
    poller.register(socket)
    found: list[Message] = []
    end = time.monotonic() + DEADLINE
    while len(found) < count and time.monotonic() < end:
        poller.wait(0.5)
        found += socket.receive_all()
    poller.close()
    return found


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    wakeup = threading.Event()
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        wakeup.wait(0.005)


def test_messages_go_both_ways_in_order(context: Context, endpoint: str) -> None:
    server = PeerServer(context, endpoint)
    one, two = (PeerClient(context, name, server.endpoint) for name in ("w1", "w2"))
    for index in range(100):
        assert one.send(tokens(index)) and two.send(tokens(index, "w2"))
    found = receive(server, 200)
    for name in ("w1", "w2"):
        assert [message for message in found if message.sender == name] == [tokens(i, name) for i in range(100)]
    assert server.send(Cancel("p1", "w2", "r", 0)) and server.send(Cancel("p1", "w1", "s", 0))
    assert receive(two, 1) == [Cancel("p1", "w2", "r", 0)]
    assert receive(one, 1) == [Cancel("p1", "w1", "s", 0)]


def test_a_peer_that_is_not_there_is_said(context: Context, endpoint: str) -> None:
    server = PeerServer(context, endpoint)
    assert not server.send(Cancel("p1", "nobody", "r", 0))
    assert server.unreachable == 1


def test_a_client_may_come_before_its_server(context: Context, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/control"
    client = WorkerSocket(context, "w1", endpoint)
    assert client.send(tokens(0))
    assert receive(PeerServer(context, endpoint), 1) == [tokens(0)]


def test_a_server_comes_back_on_the_same_endpoint(context: Context, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/control"
    first = PeerServer(context, endpoint)
    client = WorkerSocket(context, "w1", endpoint)
    client.send(tokens(0))
    receive(first, 1)
    first.close()
    second = PeerServer(context, endpoint)
    eventually(lambda: second.send(Cancel("p2", "w1", "r", 0)))
    assert receive(client, 1) == [Cancel("p2", "w1", "r", 0)]


def test_a_full_queue_is_back_pressure_and_nothing_is_lost(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # B12
    monkeypatch.setattr(sockets, "HIGH_WATER_MARK", 512)
    server = PeerServer(context, endpoint)
    client = WorkerSocket(context, "w1", server.endpoint)
    sent = 0
    for _ in range(150_000):
        if not client.send(tokens(sent)):
            break
        sent += 1
    assert client.full == 1, "the queue never filled"
    found: list[Message] = []
    while len(found) < sent:
        batch = receive(server, 1)
        assert batch, f"{sent - len(found)} messages were lost"
        found += batch
    assert found == [tokens(index) for index in range(sent)]
    eventually(lambda: client.send(tokens(sent)))


def test_a_worker_waits_for_no_proxy_that_is_gone(endpoint: str) -> None:
    """Its last words would reach nobody: the context ends although the socket may linger."""
    context = open_context()
    server = PeerServer(context, endpoint)
    client = WorkerSocket(context, "w1", server.endpoint)
    assert client.send(tokens(0)) and receive(server, 1) == [tokens(0)]
    server.close()
    eventually(lambda: away(client))
    assert client.send(Goodbye("w1", "p1"))
    client.close(linger=3600.0)
    ended = threading.Thread(target=context.term, daemon=True)
    ended.start()
    ended.join(DEADLINE)
    assert not ended.is_alive(), "it lingers"


def test_last_words_reach_a_proxy_that_is_there(endpoint: str) -> None:
    there, here = open_context(), open_context()
    server = PeerServer(here, endpoint)
    client = WorkerSocket(there, "w1", server.endpoint)
    assert client.send(tokens(0)) and receive(server, 1) == [tokens(0)]
    for index in range(1, 1000):
        assert client.send(tokens(index))
    client.close(linger=DEADLINE)
    there.term()
    assert receive(server, 999) == [tokens(index) for index in range(1, 1000)]
    server.close()
    here.term()


def away(client: WorkerSocket) -> bool:
    client.connection.look(time.monotonic())
    return client.connection.state is Reachability.AWAY


def test_strangers_and_broken_frames_are_counted_and_dropped(
    context: Context, endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pontil.wire")
    server = PeerServer(context, endpoint)
    client = PeerClient(context, "w1", server.endpoint)
    for parts in ([b"\xff not a message"], [b""], [encode(tokens(0)), b"more"], [encode(tokens(0, "somebody else"))]):
        client.zmq_socket.send_multipart(parts)
    client.send(tokens(1))
    assert receive(server, 1) == [tokens(1)]
    assert server.malformed == 4
    for said in ("not msgpack", "a message of 3 parts", "a Tokens of somebody else came from b'w1'"):
        assert said in caplog.text
    server.zmq_socket.send_multipart([b"w1", b"junk"])
    server.zmq_socket.send_multipart([b"w1", encode(tokens(0)), b"more"])
    server.send(Goodbye("p1", "w1"))
    assert receive(client, 1) == [Goodbye("p1", "w1")]
    assert client.malformed == 2


SENDS = """
import sys
import app
from pontil.runtime.wire.messages import Failed
from pontil.runtime.wire.links.sockets import WorkerSocket, open_context
socket = WorkerSocket(open_context(), "w1", sys.argv[1])
while True:
    socket.send(Failed("w1", "p1", "r", 0, "x" * (1 << 20)))
"""


def test_a_process_that_is_killed_while_it_sends_leaves_no_part_of_a_frame(context: Context, endpoint: str) -> None:
    """The next one has the same routing id, as one that connects again has: what was not read of the connection before
    is gone, whole."""
    server = PeerServer(context, endpoint)
    for _ in range(3):
        command = [sys.executable, "-c", SENDS, server.endpoint]
        with subprocess.Popen(command, cwd=ROOT) as sender:
            assert receive(server, 2)
            sender.kill()
        assert all(isinstance(message, Failed) for message in server.receive_all())
    assert server.malformed == 0


def test_what_cannot_be_bound_is_one_sentence(context: Context) -> None:
    held = PeerServer(context, "tcp://127.0.0.1:*")
    with pytest.raises(PontilError, match="cannot listen on tcp://.*in use"):
        ControlServer(context, held.endpoint)
    with pytest.raises(PontilError, match="cannot listen"):
        PeerServer(context, "ipc:///no/such/folder/socket")
    with pytest.raises(PontilError, match="cannot connect"):
        PeerClient(context, "w1", "nonsense")


def test_the_control_server_serves_an_event_loop(context: Context, endpoint: str) -> None:
    """A worker asks, the loop answers each message; sends inside the loop must not hide messages that arrive
    meanwhile."""

    async def serve() -> list[Message]:
        found: list[Message] = []
        done = asyncio.Event()
        server = ControlServer(context, endpoint)

        def answer(messages: list[Message]) -> None:
            found.extend(messages)
            for message in messages:
                assert server.send(Cancel("p1", message.sender, str(len(found)), 0))
            if len(found) >= 2000:
                done.set()

        server.listen(answer)
        worker = threading.Thread(target=ask, args=(server.endpoint,))
        worker.start()
        await asyncio.wait_for(done.wait(), DEADLINE)
        await asyncio.to_thread(worker.join, DEADLINE)
        server.close()
        return found

    def ask(address: str) -> None:
        client = WorkerSocket(context, "w1", address)
        for start in range(0, 2000, 50):
            for index in range(start, start + 50):
                assert client.send(tokens(index))
            answers.extend(receive(client, 50))

    answers: list[Message] = []
    found = asyncio.run(serve())
    assert found == [tokens(index) for index in range(2000)]
    assert len(answers) == 2000


def test_what_is_delivered_belongs_to_no_request_that_looks(context: Context, endpoint: str) -> None:
    """Log lines of a request's handler bear its id: what a worker says of anybody is not logged under it, though the
    handler's own message was sent just before."""
    current = ContextVar("current", default="nobody's")

    async def serve() -> list[str]:
        server, seen, told = ControlServer(context, endpoint), list[str](), asyncio.Event()

        def deliver(messages: list[Message]) -> None:
            seen.append(current.get())
            told.set()

        server.listen(deliver)
        # Only the look below delivers.
        asyncio.get_running_loop().remove_reader(int(server.zmq_socket.getsockopt(zmq.FD)))
        await asyncio.sleep(0)  # the turn in which `listen` looks
        current.set("a request's")
        worker = WorkerSocket(context, "w1", server.endpoint)
        eventually(lambda: worker.send(tokens(0)))
        eventually(lambda: server.readable)
        server.look_again()
        await asyncio.wait_for(told.wait(), DEADLINE)
        worker.close()
        server.close()
        return seen

    assert asyncio.run(serve()) == ["nobody's"]


def test_wake_ends_a_wait_from_another_thread(context: Context) -> None:
    poller = Poller()
    waker = threading.Thread(target=poller.wake)
    waker.start()
    assert poller.wait(DEADLINE)
    waker.join()
    poller.wake()
    poller.wake()
    assert poller.wait(DEADLINE) and not poller.wait(0), "several wakes count as one"
    poller.close()


def test_the_poller_hears_its_sockets(context: Context, endpoint: str) -> None:
    server = PeerServer(context, endpoint)
    poller = Poller()
    poller.register(server)
    client = PeerClient(context, "w1", server.endpoint)
    client.send(tokens(0))
    assert poller.wait(DEADLINE)
    eventually(lambda: server.receive_all() == [tokens(0)])
    poller.unregister(server)
    client.send(tokens(1))
    assert not poller.wait(0.05)
    assert server.zmq_socket.poll(int(DEADLINE * 1000)) == zmq.POLLIN
    poller.close()


def test_a_socket_knows_whether_it_has_left_some(context: Context, endpoint: str) -> None:
    server = PeerServer(context, endpoint)
    client = PeerClient(context, "w1", server.endpoint)
    sent, received = 0, list[Message]()

    def takes_some_of_more() -> bool:
        nonlocal sent
        for _ in range(3):
            client.send(tokens(sent))
            sent += 1
        some = server.receive_all(2)
        received.extend(some)
        assert server.may_have_more == (len(some) == 2)
        return server.may_have_more

    eventually(takes_some_of_more)
    while len(received) < sent:
        eventually(lambda: server.readable)
        received += server.receive_all()
    assert received == list(map(tokens, range(sent)))
    assert server.receive_all(2) == [] and not server.may_have_more


def test_what_comes_in_a_turn_is_read_in_the_next(context: Context, endpoint: str) -> None:
    server, poller = PeerServer(context, endpoint), Poller()
    poller.register(server)
    poller.begin_turn(0)
    client = PeerClient(context, "w1", server.endpoint)
    client.send(tokens(0))
    assert server.zmq_socket.poll(int(DEADLINE * 1000)) == zmq.POLLIN
    assert not server.receive_all() and not poller.may_show(server.zmq_socket) and poller.is_quiet
    poller.begin_turn(DEADLINE)
    assert not poller.is_quiet and poller.may_show(server.zmq_socket) and server.receive_all() == [tokens(0)]
    client.send(tokens(1))
    poller.end_turn()
    eventually(lambda: server.receive_all() == [tokens(1)])
    poller.close()
