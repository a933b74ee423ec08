# SPDX-License-Identifier: Apache-2.0
"""The serving side of transfers over TCP: sends blocks of the pool to peers that have its token.

Each peer has one connection and one thread. Until its first valid request a connection is untrusted: it has
FIRST_REQUEST seconds for that request and is closed in favour of new connections when the server is full. Nothing here
can write to the pool.
"""

import contextlib
import hmac
import logging
import secrets
import socket
import threading
import time
from functools import partial
from typing import Any

import numpy as np

from pontil.runtime.cache.storage import EPOCH_SLOTS, KVStorage, epoch_after_data
from pontil.runtime.errors import ModelError, TransferError
from pontil.runtime.threads import GuardedThread, ThreadFailures
from pontil.runtime.transfer.connector import ConnectorOptions, is_within
from pontil.runtime.transfer.grants import Grants
from pontil.runtime.transfer.tcp.block_encryption import PUBLIC_BYTES, TAG_BYTES, CipherPair, KeyAgreement
from pontil.runtime.transfer.tcp.frames import (
    ANSWER,
    EPOCH,
    FULL,
    HEADS,
    LENGTH,
    MAGIC,
    MAGIC_SLICES,
    MAX_NAME,
    NO_ROOM,
    READ,
    REFUSED,
    REQUEST,
    RUN,
    STAMP,
    TOKEN_BYTES,
)

# Each connection is a thread and a descriptor; a decode worker has one, and so has an untrusted client while it lasts.
# A warning is logged if there are more decode workers than this for each prefill worker.
MAX_CONNECTIONS = 256
FIRST_REQUEST = 5.0
# Seconds for the rest of a request, once its first byte came.
WHOLE_REQUEST = 5.0
# A send call must end within the time of a stall, so it is kept small enough for a slow network.
SEND_BYTES = 1 << 20
ACCEPT_PAUSE = 0.1
# Refused clients retry again and again; they are logged once in so many seconds.
SAY_AGAIN = 30.0
JOIN_TIMEOUT = 5.0
# Detect within half a minute that an idle peer's machine is gone: idle seconds, seconds between probes, probes.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))

LOG = logging.getLogger("pontil.worker")

Runs = list[tuple[int, int]]
# Bytes of a request that are received at once.
READ_BYTES = 64 << 10


class TcpConnection:
    """A peer's connection. Any thread may call `close`; only the connection's own thread closes the socket itself."""

    def __init__(self, peer: socket.socket, first_request: float) -> None:
        self.socket = peer
        self.deadline: float | None = time.monotonic() + first_request
        self.lock = threading.Lock()
        self.ciphers: CipherPair | None = None
        # The unread rest of a decrypted request.
        self.opened = b""

    @property
    def untrusted(self) -> bool:
        return self.deadline is not None

    def close(self) -> None:
        """End whatever the connection's thread is waiting for."""
        with self.lock, contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        with self.lock:
            self.socket.close()

    def agree(self, seed: bytes) -> None:
        """Agree on the keys of this connection. The first request shows whether the peer has the same seed."""
        assert self.deadline is not None
        mine = KeyAgreement()
        theirs = self.read(PUBLIC_BYTES, self.deadline)
        self.socket.sendall(mine.public)
        self.ciphers = mine.as_server(seed, theirs)

    def read(self, size: int, deadline: float) -> bytes:
        """Return exactly `size` bytes by `deadline`. Raise OSError when they do not come. Memory is taken as they come:
        who states the size may have shown nothing yet."""
        data = bytearray()
        while len(data) < size:
            self.socket.settimeout(max(1e-3, deadline - time.monotonic()))
            piece = self.socket.recv(min(size - len(data), READ_BYTES))
            if not piece or time.monotonic() >= deadline:
                raise ConnectionError("the peer closed the connection or is too slow")
            data += piece
        return bytes(data)

    def take(self, size: int, deadline: float) -> bytes:
        """Return the next `size` bytes of a request. Raise OSError when they do not come, or it has fewer."""
        if self.ciphers is None:
            return self.read(size, deadline)
        if len(self.opened) < size:
            raise ConnectionError("the request is too short")
        chunk, self.opened = self.opened[:size], self.opened[size:]
        return chunk

    def put(self, data: bytes | memoryview) -> None:
        """Send one piece of an answer."""
        view = memoryview(data if self.ciphers is None else self.ciphers.sending.close(data))
        for start in range(0, len(view), SEND_BYTES):
            self.socket.sendall(view[start : start + SEND_BYTES])

    def read_head(self, longest: int) -> tuple[bytes, float]:
        """Return the fixed part of the next request, and the deadline for the rest. Only a trusted peer may idle. An
        encrypted request is at most `longest` bytes."""
        deadline, first_byte = self.deadline, b""
        if deadline is None:
            self.socket.settimeout(None)
            first_byte = self.socket.recv(1)
            deadline = time.monotonic() + WHOLE_REQUEST
        size = REQUEST.size if self.ciphers is None else LENGTH.size
        head = first_byte + self.read(size - len(first_byte), deadline)
        if self.ciphers is not None:
            length = LENGTH.unpack(head)[0]
            if length > longest:
                raise ConnectionError("the request is longer than one can be")
            self.opened = self.ciphers.receiving.open(self.read(length, deadline))
            head = self.take(REQUEST.size, deadline)
        return head, deadline


class TcpServer:
    """A server on a free port of the options' host. Raises ModelError when it cannot listen there. It has at most
    MAX_CONNECTIONS threads and the one that accepts. With a guard, peers need the system's keys, and for blocks a
    grant. A peer that takes no data for `stall` seconds is disconnected."""

    def __init__(self, storage: KVStorage, options: ConnectorOptions) -> None:
        self.storage, self.first_request, self.guard = storage, FIRST_REQUEST, options.guard
        self.stall = options.deadlines.kv_stall_timeout
        self.data = storage.shared.numpy().reshape(-1).data
        self.epochs = storage.epochs.numpy()
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.silent_until = 0.0
        self.listener = listen(options.host)
        self.connections: dict[TcpConnection, threading.Thread] = {}
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.failures = options.failures or ThreadFailures()
        self.thread = GuardedThread(self.accept_until_closed, "tcp-server", self.failures)
        self.thread.start()

    def descriptor(self) -> dict[str, Any]:
        host, port = self.listener.getsockname()[:2]
        blocks, size = self.storage.num_blocks, self.storage.layout.block_bytes
        return {
            "kind": "tcp",
            "host": host,
            "port": port,
            "token": self.token.hex(),
            "blocks": blocks,
            "block_bytes": size,
        }

    def close(self) -> None:
        self.stopping.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join(JOIN_TIMEOUT)
        self.listener.close()
        with self.lock:
            connections = dict(self.connections)
        for connection in connections:
            connection.close()
        deadline = time.monotonic() + JOIN_TIMEOUT
        for thread in connections.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def accept_until_closed(self) -> None:
        while not self.stopping.is_set():
            try:
                peer, _ = self.listener.accept()
            except OSError:
                self.stopping.wait(ACCEPT_PAUSE)  # closing, or out of descriptors: the latter must not spin
            else:
                self.admit(peer)

    def admit(self, peer: socket.socket) -> None:
        """Start a thread for a new connection, or turn it away when every other one is trusted."""
        if len(self.connections) >= MAX_CONNECTIONS:
            self.make_room()
        if len(self.connections) >= MAX_CONNECTIONS:
            self.turn_away(peer)
            return
        connection = TcpConnection(peer, self.first_request)
        thread = GuardedThread(partial(self.serve, connection), "tcp-guest", self.failures, again=False)
        with self.lock:
            self.connections[connection] = thread
        try:
            thread.start()
        except RuntimeError:  # the system has no thread for it
            self.forget(connection)
            raise

    def turn_away(self, peer: socket.socket) -> None:
        """Send the reason for refusal, as far as a new connection's buffer takes it at once, and log it."""
        with contextlib.closing(peer), contextlib.suppress(OSError):
            peer.setblocking(False)
            peer.send(ANSWER.pack(FULL, 0) if self.guard is None else NO_ROOM)
        now = time.monotonic()
        if now >= self.silent_until:
            self.silent_until = now + SAY_AGAIN
            LOG.warning(
                "a decode worker's connection for KV transfers was refused: %d are open, and no more are served; "
                "start more prefill workers, or fewer decode workers",
                MAX_CONNECTIONS,
            )

    def make_room(self) -> None:
        """Close the oldest untrusted connection. Only this thread adds connections."""
        with self.lock:
            untrusted_connections = [
                (connection, thread) for connection, thread in self.connections.items() if connection.untrusted
            ]
        for connection, thread in untrusted_connections[:1]:
            connection.close()
            thread.join(JOIN_TIMEOUT)

    def serve(self, connection: TcpConnection) -> None:
        """Answer a peer until it leaves, breaks the protocol or is too slow."""
        try:
            smooth(connection.socket)
            if self.guard is not None:
                connection.agree(self.guard.seed)
            while not self.stopping.is_set() and self.answer(connection):
                pass
        except (OSError, TransferError):
            return
        finally:
            self.forget(connection)

    def forget(self, connection: TcpConnection) -> None:
        connection.leave()
        with self.lock:
            del self.connections[connection]

    def answer(self, connection: TcpConnection) -> bool:
        """Answer one request. Return False when the connection cannot go on."""
        head, deadline = connection.read_head(self.longest)
        magic, token, slot, count = REQUEST.unpack(head)
        if magic not in (MAGIC, MAGIC_SLICES) or not hmac.compare_digest(token, self.token):
            return False
        heads_field = b"" if magic == MAGIC else connection.take(HEADS.size, deadline)
        tail = connection.take(count * RUN.size, deadline) if 0 < count < self.storage.num_blocks else b""
        runs: Runs = list(RUN.iter_unpack(tail))
        if (
            self.guard is not None
            and runs
            and not has_grant(connection, self.guard.grants, head + heads_field + tail, runs, slot, deadline)
        ):
            return False
        connection.deadline = None
        connection.socket.settimeout(self.stall)
        heads = heads_named(heads_field) if heads_field else self.storage.layout.kv_heads
        if count != len(runs) or slot >= EPOCH_SLOTS or not (self.has(runs) and self.holds(heads)):
            connection.put(ANSWER.pack(REFUSED, 0))
            return bool(count == len(runs))
        self.send(connection, runs, heads)
        connection.put(EPOCH.pack(epoch_after_data(self.epochs, slot)))
        return True

    def holds(self, heads: range) -> bool:
        """Return whether all these heads are in the pool."""
        return is_within(heads, self.storage.layout.kv_heads)

    def has(self, runs: Runs) -> bool:
        """Return whether all these blocks are in the pool, and not more of them than it has."""
        blocks = self.storage.num_blocks
        inside = all(0 < first < first + count <= blocks for first, count in runs)
        return inside and sum(count for _, count in runs) < blocks

    @property
    def longest(self) -> int:
        """The size of an encrypted request that names every block by itself."""
        return REQUEST.size + HEADS.size + self.storage.num_blocks * RUN.size + STAMP.size + MAX_NAME + TAG_BYTES

    def send(self, connection: TcpConnection, runs: Runs, heads: range) -> None:
        """Send these heads of the blocks. On return all of them have been copied out of the pool."""
        size = self.storage.slice_bytes(heads)
        connection.put(ANSWER.pack(READ, size * sum(count for _, count in runs)))
        if heads == self.storage.layout.kv_heads:
            self.send_blocks(connection, runs)
            return
        slices = self.storage.slices(self.storage.bytes, self.storage.layout.kv_heads, heads)
        at_once = max(1, SEND_BYTES // size) if connection.ciphers is None else 1
        for first, count in runs:
            for start in range(first, first + count, at_once):
                part = slices[start : min(start + at_once, first + count)]
                connection.put(np.ascontiguousarray(part).reshape(-1).data)

    def send_blocks(self, connection: TcpConnection, runs: Runs) -> None:
        """Send whole blocks, straight from the pool."""
        size = self.storage.layout.block_bytes
        piece = SEND_BYTES if connection.ciphers is None else size
        for first, count in runs:
            for start in range(first * size, (first + count) * size, piece):
                connection.put(self.data[start : min(start + piece, (first + count) * size)])


def heads_named(heads_field: bytes) -> range:
    first, count = HEADS.unpack(heads_field)
    return range(first, first + count)


def has_grant(
    connection: TcpConnection, grants: Grants, request: bytes, runs: Runs, slot: int, deadline: float
) -> bool:
    """Return whether the grant that follows the request, for these runs, lets the peer read what it asks for."""
    stamp, epoch, length = STAMP.unpack(connection.take(STAMP.size, deadline))
    transfer_id = connection.take(length, deadline).decode(errors="replace") if length else ""
    return grants.admits(transfer_id, epoch, request, stamp, slot, runs)


def listen(host: str) -> socket.socket:
    """Return a listening socket on a free port of `host`, which is an address, or a name of one, that peers can
    reach."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ModelError(f"the transfer host {host!r} is not known ({error.strerror}): give an address") from None
    try:
        listener.bind(address)
        listener.listen(MAX_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise ModelError(
            f"KV transfers cannot be offered on {host!r} ({error.strerror}): give an address of this machine"
        ) from None
    if listener.getsockname()[0] in ("0.0.0.0", "::"):
        listener.close()
        raise ModelError(f"the transfer host {host!r} is no address that a peer can reach: name one")
    return listener


def smooth(peer: socket.socket) -> None:
    """Send small packets at once, and detect connections whose other machine is gone."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        peer.setsockopt(socket.IPPROTO_TCP, option, value)
