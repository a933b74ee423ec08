# SPDX-License-Identifier: Apache-2.0
"""The TCP server of blocks against peers that break every rule: it disconnects them and goes on serving."""

import socket
import struct
import time
import tracemalloc
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import KINDS, LAYOUT, Pool, wait_for

from pontil.runtime.cache.storage import EPOCH_SLOTS
from pontil.runtime.config.worker_config import Deadlines
from pontil.runtime.errors import ModelError
from pontil.runtime.transfer.connector import ConnectorOptions
from pontil.runtime.transfer.tcp import server as tcp_server
from pontil.runtime.transfer.tcp.connector import TcpConnector
from pontil.runtime.transfer.tcp.frames import (
    ANSWER,
    CROWDED,
    EPOCH,
    FULL,
    HEADS,
    MAGIC,
    READ,
    REFUSED,
    REQUEST,
    request,
)
from pontil.runtime.transfer.tcp.server import TcpServer, listen

TIMEOUT = 60.0
MOST = (1 << 32) - 1


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(TcpConnector, blocks=40)
    made.storage.epochs[9] = 77
    yield made
    made.connector.close()


def server_of(pool: Pool) -> TcpServer:
    assert isinstance(pool.connector, TcpConnector)
    return pool.connector.server


def call(pool: Pool) -> socket.socket:
    host, port = server_of(pool).listener.getsockname()
    return socket.create_connection((host, port), timeout=TIMEOUT)


def read(peer: socket.socket, size: int) -> bytes:
    """Return that many bytes, or those that came before the end."""
    data = b""
    while len(data) < size and (more := peer.recv(size - len(data))):
        data += more
    return data


def ends(peer: socket.socket) -> bool:
    """Return whether the server closes without having sent anything."""
    try:
        return peer.recv(1) == b""
    except ConnectionError:  # it closed before it had read everything
        return True


def serves(pool: Pool, peer: socket.socket) -> bool:
    """Return whether a valid request on this connection gets its answer."""
    peer.sendall(request(server_of(pool).token, 9, [(3, 2), (39, 1)]))
    size = 3 * LAYOUT.block_bytes
    head, data, cell = read(peer, ANSWER.size), read(peer, size), read(peer, EPOCH.size)
    wanted = pool.storage.shared[[3, 4, 39]].numpy().tobytes()
    return (head, data, cell) == (ANSWER.pack(READ, size), wanted, EPOCH.pack(77))


def goes_on(pool: Pool) -> bool:
    with call(pool) as peer:
        return serves(pool, peer) and serves(pool, peer)


def test_requests_are_answered_one_after_the_other(pool: Pool) -> None:
    assert goes_on(pool)
    with call(pool) as peer:
        peer.sendall(request(server_of(pool).token, 9, []))
        assert read(peer, ANSWER.size + EPOCH.size) == ANSWER.pack(READ, 0) + EPOCH.pack(77)


@settings(max_examples=30, deadline=None)
@given(garbage=st.binary(min_size=REQUEST.size, max_size=200))
def test_garbage_gets_no_answer(pool: Pool, garbage: bytes) -> None:
    with call(pool) as peer:
        peer.sendall(garbage)
        assert ends(peer)
    assert goes_on(pool)


@pytest.mark.parametrize("place", [0, 3, 4, 19])
def test_a_wrong_version_or_token_gets_no_answer(pool: Pool, place: int) -> None:
    asked = bytearray(request(server_of(pool).token, 9, [(3, 1)]))
    asked[place] ^= 1
    with call(pool) as peer:
        peer.sendall(asked)
        assert ends(peer)
    assert goes_on(pool)


@pytest.mark.parametrize(
    ("slot", "runs"),
    [
        (0, [(0, 1)]),
        (0, [(40, 1)]),
        (0, [(39, 2)]),
        (0, [(3, 0)]),
        (0, [(1, MOST)]),
        (0, [(MOST, MOST)]),
        (0, [(3, 1), (0, 1)]),
        (0, [(1, 39), (1, 39)]),  # more than the pool has
        (EPOCH_SLOTS, [(3, 1)]),
        (MOST, []),
    ],
)
def test_what_the_pool_does_not_have_is_refused(pool: Pool, slot: int, runs: list[tuple[int, int]]) -> None:
    with call(pool) as peer:
        peer.sendall(request(server_of(pool).token, slot, runs))
        assert read(peer, ANSWER.size) == ANSWER.pack(REFUSED, 0)
        assert serves(pool, peer)


@pytest.mark.parametrize(("first", "count"), [(0, 0), (2, 1), (1, 2), (0, MOST), (MOST, MOST), (MOST, 1)])
def test_heads_that_the_pool_does_not_have_are_refused(pool: Pool, first: int, count: int) -> None:
    with call(pool) as peer:
        plain = request(server_of(pool).token, 9, [(3, 1)], heads=range(1))
        peer.sendall(plain[: REQUEST.size] + HEADS.pack(first, count) + plain[REQUEST.size + HEADS.size :])
        assert read(peer, ANSWER.size) == ANSWER.pack(REFUSED, 0)
        assert serves(pool, peer)


def test_heads_are_sent_one_after_the_other(pool: Pool) -> None:
    with call(pool) as peer:
        for head in (1, 0):
            peer.sendall(request(server_of(pool).token, 9, [(3, 2), (39, 1)], heads=range(head, head + 1)))
            data = pool.storage.tensor[[3, 4, 39]][:, :, :, head].contiguous().view(torch.uint8).numpy().tobytes()
            assert read(peer, ANSWER.size) == ANSWER.pack(READ, len(data))
            assert read(peer, len(data) + EPOCH.size) == data + EPOCH.pack(77)


def test_a_huge_number_of_runs_is_not_waited_for(pool: Pool) -> None:
    with call(pool) as peer:
        peer.sendall(REQUEST.pack(MAGIC, server_of(pool).token, 0, MOST))
        assert read(peer, ANSWER.size) == ANSWER.pack(REFUSED, 0)
        assert ends(peer)
    assert goes_on(pool)


@pytest.mark.parametrize("sent", [0, 1, REQUEST.size, REQUEST.size + 3])
def test_half_a_request_and_silence_has_a_deadline(pool: Pool, monkeypatch: pytest.MonkeyPatch, sent: int) -> None:
    monkeypatch.setattr(server_of(pool), "first_request", 0.1)
    monkeypatch.setattr(tcp_server, "WHOLE_REQUEST", 0.1)
    asked = request(server_of(pool).token, 9, [(3, 1)])
    with call(pool) as untrusted, call(pool) as trusted:
        assert serves(pool, trusted)
        untrusted.sendall(asked[:sent])
        assert ends(untrusted)
        if sent:
            trusted.sendall(asked[:sent])
            assert ends(trusted)
        else:
            assert serves(pool, trusted)  # a trusted peer may idle
    assert goes_on(pool)


def test_a_peer_that_does_not_read_is_left() -> None:
    brief = Deadlines(kv_stall_timeout=1.0)
    large = Pool(lambda storage, wake: TcpConnector(storage, wake, ConnectorOptions(deadlines=brief)), blocks=20000)
    with call(large) as peer:
        peer.sendall(request(server_of(large).token, 0, [(1, 19999)]))
        wait_for(lambda: len(server_of(large).connections) == 1)
        wait_for(lambda: not server_of(large).connections)
    with call(large) as peer:
        peer.sendall(request(server_of(large).token, 0, []))
        assert len(read(peer, ANSWER.size)) == ANSWER.size
    large.connector.close()


def test_strangers_make_room_and_trusted_guests_do_not(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "MAX_CONNECTIONS", 4)
    wait_for(lambda: not server_of(pool).connections)
    untrusted_peers = [call(pool) for _ in range(9)]
    wait_for(lambda: len(server_of(pool).connections) == 4)
    trusted_peers = [call(pool) for _ in range(4)]
    assert all(serves(pool, friend) for friend in trusted_peers)
    with call(pool) as late:
        assert read(late, ANSWER.size) == ANSWER.pack(FULL, 0)
        assert ends(late)
    assert all(serves(pool, friend) for friend in trusted_peers)
    assert all(ends(untrusted) for untrusted in untrusted_peers)
    for peer in untrusted_peers + trusted_peers:
        peer.close()
    wait_for(lambda: not server_of(pool).connections)
    assert goes_on(pool)


@pytest.mark.parametrize("kind", ["tcp", "sealed"])
def test_a_peer_too_many_is_told_so_and_the_log_has_it_once(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp_server, "MAX_CONNECTIONS", 2)
    source, readers = Pool(KINDS[kind]), [Pool(KINDS[kind]) for _ in range(4)]

    def error_of(reader: Pool) -> str | None:
        (done,) = reader.finish(reader.pull("P", [(3, 4)], 0))
        return done.error

    def works(reader: Pool) -> bool:
        return error_of(reader) is None

    for number, reader in enumerate(readers):
        reader.connector.attach("P", source.connector.register())
        if number < 2:
            # A pull may replace the first test of the connection, whose end the server has yet to notice.
            wait_for(partial(works, reader))
        else:
            assert error_of(reader) == CROWDED and not reader.connector.lost()
    assert caplog.text.count("2 are open, and no more are served") == 1
    readers[0].connector.close()
    wait_for(lambda: len(server_of(source).connections) < 2)
    wait_for(partial(works, readers[3]))
    for pool in (source, *readers):
        pool.connector.close()


def test_a_reset_is_no_error(pool: Pool) -> None:
    peer = call(pool)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.sendall(request(server_of(pool).token, 0, [(1, 39)]))
    peer.close()
    assert goes_on(pool)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "no.such.host.invalid"])
def test_a_host_that_cannot_be_is_named(host: str) -> None:
    with pytest.raises(ModelError, match=host):
        listen(host)


def test_a_name_is_told_as_an_address() -> None:
    with listen("localhost") as listener:
        assert listener.getsockname()[0] in ("127.0.0.1", "::1")


def test_a_size_that_a_peer_only_states_takes_no_memory() -> None:
    ours, theirs = socket.socketpair()
    connection = tcp_server.TcpConnection(ours, 60.0)
    theirs.sendall(bytes(1000))
    theirs.close()
    tracemalloc.start()
    with pytest.raises(ConnectionError):
        connection.read(1 << 28, time.monotonic() + 60.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    connection.leave()
    assert peak < 1 << 20
