# SPDX-License-Identifier: Apache-2.0
"""Sockets with keys: messages of peers with the keys arrive, those of others do not, and these notice it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import zmq

from pontil.runtime.wire.links.connection_monitor import HANDSHAKE_TIMEOUT, STATES, ConnectionMonitor, Reachability
from pontil.runtime.wire.links.context import Context
from pontil.runtime.wire.links.keys import KeyPair, Keys, derived, is_network
from pontil.runtime.wire.links.sockets import (
    BaseSocket,
    ClientSocket,
    PeerClient,
    PeerServer,
    WorkerSocket,
    open_context,
)
from pontil.runtime.wire.messages import Cancel, Message, Tokens

OURS, THEIRS = Keys.of("01" * 32), Keys.of("02" * 32)
STRANGER = replace(OURS, client=KeyPair.of(b"x" * 32))
DEADLINE = 60.0


@contextmanager
def contexts(*keys: Keys | None) -> Iterator[list[Context]]:
    made = [open_context(one) for one in keys]
    yield made
    for context in made:
        context.destroy(linger=0)


def eventually(condition: Callable[[], object]) -> None:
    end, pause = time.monotonic() + DEADLINE, threading.Event()
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        pause.wait(0.01)


def tokens(index: int, sender: str = "w1") -> Tokens:
    return Tokens(sender, "p1", "r", 0, index, [0])


def receive(socket: BaseSocket) -> list[Message]:
    """Return the first message that comes, and those that arrived with it."""
    assert socket.zmq_socket.poll(int(DEADLINE * 1000)), "nothing came"
    return socket.receive_all()


def state_of(client: ClientSocket) -> Reachability:
    client.connection.look(0.0)
    return client.connection.state


def test_keys_follow_from_the_secret_and_none_from_another() -> None:
    assert Keys.of("01" * 32) == OURS != THEIRS
    values = [OURS.server.secret, OURS.client.secret, OURS.transfer, OURS.server.public, OURS.client.public]
    assert len(set(values)) == 5
    assert derived(b"a", b"server") != derived(b"a", b"client")


def test_no_key_shows_itself() -> None:
    shown = repr(OURS)
    assert not [key for key in (OURS.server.secret, OURS.client.secret, OURS.transfer) if repr(key)[2:-1] in shown]


def test_who_has_the_keys_is_heard_and_answered() -> None:
    with contexts(OURS, OURS) as (here, there):
        server = PeerServer(here, "tcp://127.0.0.1:*")
        client = WorkerSocket(there, "w1", server.endpoint)
        client.send(tokens(0))
        assert receive(server) == [tokens(0)]
        assert server.send(Cancel("p1", "w1", "r", 0)) and receive(client) == [Cancel("p1", "w1", "r", 0)]
        assert state_of(client) is Reachability.OPEN
        server.close()
        eventually(lambda: state_of(client) is Reachability.AWAY)


@pytest.mark.parametrize(
    ("server_keys", "client_keys"),
    [(OURS, THEIRS), (OURS, STRANGER), (OURS, None), (None, OURS)],
    ids=["other keys", "a stranger who knows the server's", "client without", "server without"],
)
def test_who_does_not_have_them_is_not_heard_and_knows(server_keys: Keys | None, client_keys: Keys | None) -> None:
    with contexts(server_keys, client_keys, server_keys) as (here, there, friends):
        server = PeerServer(here, "tcp://127.0.0.1:*")
        stranger = WorkerSocket(there, "w1", server.endpoint)
        stranger.send(tokens(0))
        eventually(lambda: state_of(stranger) is Reachability.REFUSED)
        friend = WorkerSocket(friends, "w2", server.endpoint)
        friend.send(tokens(1, "w2"))
        assert receive(server) == [tokens(1, "w2")], "nothing came of the stranger's"
        assert not server.send(Cancel("p1", "w1", "r", 0))
        rejected = here.authenticator.rejected if here.authenticator else 0
        assert (rejected > 0) == (client_keys is STRANGER), "only who gets so far is asked for his own key"


def test_nobody_there_is_not_a_refusal() -> None:
    with contexts(OURS, OURS) as (here, there):
        server = PeerServer(here, "tcp://127.0.0.1:*")
        address = server.endpoint
        server.close()
        client = WorkerSocket(there, "w1", address)
        assert client.connection.events is not None
        while client.connection.events.poll(int(DEADLINE * 1000)) and state_of(client) is not Reachability.AWAY:
            pass
        assert state_of(client) is Reachability.AWAY


def test_socket_files_need_none(tmp_path: object) -> None:
    assert not is_network(f"ipc://{tmp_path}/control") and is_network("tcp://10.0.0.1:7000")
    with contexts(OURS, None) as (here, there):
        server = PeerServer(here, f"ipc://{tmp_path}/control")
        client = PeerClient(there, "w1", f"ipc://{tmp_path}/control")
        client.send(tokens(0))
        assert receive(server) == [tokens(0)] and state_of(client) is Reachability.OPEN


def test_a_guarded_context_leaves_no_thread_and_closes_twice() -> None:
    before = set(threading.enumerate())
    context = open_context(OURS)
    (own,) = set(threading.enumerate()) - before
    client = WorkerSocket(context, "w1", "tcp://127.0.0.1:9")
    client.close()
    context.close()
    ended = threading.Thread(target=context.term, daemon=True)
    ended.start()
    ended.join(DEADLINE)
    assert not ended.is_alive(), "a socket is left open"
    assert not own.is_alive()


@pytest.mark.parametrize(
    "question",
    [[], [b"1.0"], [b"1.0", b"7", b"", b"", b"", b"NULL"], [b"1.0", b"7", b"", b"", b"", b"CURVE"],
     [b"1.0", b"7", b"", b"", b"", b"CURVE", b"short"], [b"1.0", b"7", b"", b"", b"", b"PLAIN", OURS.client.raw_public],
     [b"1.0", b"7", b"", b"", b"", b"CURVE", OURS.client.raw_public, b""]],
)  # fmt: skip
def test_the_doorkeeper_lets_in_only_a_proven_key(question: list[bytes]) -> None:
    with contexts(OURS) as (context,):
        assert context.authenticator is not None
        assert context.authenticator.answer(question)[-4:-2] == [b"400", b"unknown key"]
        good = [b"1.0", b"7", b"pontil", b"127.0.0.1", b"w1", b"CURVE", OURS.client.raw_public]
        assert context.authenticator.answer(good) == [b"1.0", b"7", b"200", b"OK", b"", b""]


def connection() -> tuple[ConnectionMonitor, zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made = ConnectionMonitor(100.0)
    made.watch(context.socket(zmq.DEALER), 100.0)
    return made, context


def test_a_refusal_counts_when_it_lasts() -> None:
    made, context = connection()
    failed, closed = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_CLOSED
    made.happened(failed, 101.0)
    assert not made.lasts(Reachability.REFUSED, 101.0 + HANDSHAKE_TIMEOUT)
    made.happened(zmq.EVENT_DISCONNECTED, 103.0)
    made.happened(failed, 103.0)
    assert made.lasts(Reachability.REFUSED, 101.1 + HANDSHAKE_TIMEOUT), "the same refusal, again and again"
    made.happened(closed, 107.0)
    made.happened(failed, 108.0)
    assert not made.lasts(Reachability.REFUSED, 109.0), "whoever it was had gone meanwhile"
    made.happened(zmq.EVENT_HANDSHAKE_SUCCEEDED, 110.0)
    made.happened(zmq.EVENT_DISCONNECTED, 111.0)
    assert made.state is Reachability.AWAY and set(STATES.values()) == set(Reachability)
    made.close()
    context.destroy(linger=0)
