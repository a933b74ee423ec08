# SPDX-License-Identifier: Apache-2.0
"""Links that are cut without a word, in one direction or both: noticed at both ends, and used again at once."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from relay import BACK, THERE, Relay
from scripted_worker import eventually

from pontil.runtime.wire.links.context import Context
from pontil.runtime.wire.links.renewal import FIRST, LONGEST, Renewal
from pontil.runtime.wire.links.sockets import BaseSocket, PeerServer, Poller, WorkerSocket, open_context
from pontil.runtime.wire.messages import Cancel, Message, Tokens

DEADLINE = 60.0
TIMEOUT = 0.6


@pytest.fixture
def context() -> Iterator[Context]:
    made = open_context(link_timeout=TIMEOUT)
    yield made
    made.destroy(linger=0)


@pytest.fixture
def server(context: Context) -> PeerServer:
    return PeerServer(context, "tcp://127.0.0.1:*")


@pytest.fixture
def relay(server: PeerServer) -> Iterator[Relay]:
    made = Relay(("127.0.0.1", int(server.endpoint.rsplit(":", 1)[1])))
    yield made
    made.held = frozenset()
    made.close()


@pytest.fixture
def client(context: Context, relay: Relay, server: PeerServer) -> WorkerSocket:
    made = WorkerSocket(context, "w", f"tcp://127.0.0.1:{relay.address[1]}")
    assert made.send(tokens(0)) and receive(server) == [tokens(0)]
    return made


def tokens(index: int) -> Tokens:
    return Tokens("w", "p", "r", 0, index, [0])


def receive(socket: BaseSocket) -> list[Message]:
    """Return what comes first."""
    poller = Poller()
    poller.register(socket)
    end = time.monotonic() + DEADLINE
    while not socket.readable:
        assert time.monotonic() < end, "nothing came"
        poller.wait(0.5)
    poller.close()
    return socket.receive_all()


@pytest.mark.parametrize("held", [{THERE, BACK}, {THERE}, {BACK}], ids=["both", "there", "back"])
def test_a_cut_link_is_noticed_at_both_ends(
    relay: Relay, server: PeerServer, client: WorkerSocket, held: set[str]
) -> None:
    """With one direction left, the end that hears nothing closes, and the other one hears that."""
    relay.held = frozenset(held)
    eventually(lambda: client.breaks(time.monotonic()) and not server.send(Cancel("p", "w", "r", 0)))
    assert client.connection.breaks == 1


def test_a_peer_that_only_computes_is_no_cut_link(server: PeerServer, client: WorkerSocket) -> None:
    """The library's own thread answers while a peer reads nothing."""
    end = time.monotonic() + 4 * TIMEOUT
    while time.monotonic() < end:
        assert not client.breaks(time.monotonic())
        time.sleep(TIMEOUT / 10)  # nothing is to happen: this end reads nothing for four times the timeout
    assert client.send(tokens(1)) and receive(server) == [tokens(1)]


def test_socket_files_have_no_signs_of_life(context: Context, tmp_path: Path) -> None:
    """A process that is stopped is no cut link."""
    made = PeerServer(context, f"ipc://{tmp_path}/control")
    assert made.zmq_socket.getsockopt(zmq.HEARTBEAT_IVL) == 0


def test_a_renewed_connection_is_the_first_to_bring_anything_once_a_link_is_back(
    relay: Relay, server: PeerServer, client: WorkerSocket
) -> None:
    """Messages that were queued before are lost, and not sent late."""
    poller = Poller()
    poller.register(client)
    relay.held = frozenset((THERE, BACK))
    eventually(lambda: client.breaks(time.monotonic()))
    assert client.send(tokens(1))
    client.renew(time.monotonic())
    assert client.send(tokens(2))
    relay.held = frozenset()
    assert receive(server) == [tokens(2)]
    assert server.send(Cancel("p", "w", "r", 0)) and poller.wait(DEADLINE)
    assert client.receive_all() == [Cancel("p", "w", "r", 0)] and client.connection.breaks == 1
    poller.close()


def test_a_silent_connection_is_replaced_more_rarely_but_within_a_bound() -> None:
    renewal, at = Renewal.begun(100.0), list[float]()
    for tick in range(100):
        now = 100.0 + tick / 10
        if renewal.is_due(now):
            renewal.renewed(now)
            at.append(now)
    gaps = [later - earlier for earlier, later in zip([100.0, *at], at, strict=False)]
    assert gaps[0] == pytest.approx(FIRST) and max(gaps) == pytest.approx(LONGEST) and renewal.count == len(at)
    renewal.heard = True
    assert not renewal.is_due(1000.0)
