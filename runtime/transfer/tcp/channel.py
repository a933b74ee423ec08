# SPDX-License-Identifier: Apache-2.0
"""A TCP connection to a peer that never blocks for longer than its owner allows, in the clear or encrypted."""

import errno
import ipaddress
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.descriptor import num_blocks, part, secret, whole
from pontil.runtime.transfer.tcp.block_encryption import PUBLIC_BYTES, TAG_BYTES, CipherPair, KeyAgreement
from pontil.runtime.transfer.tcp.frames import CROWDED, LENGTH, NO_ROOM, TOKEN_BYTES
from pontil.runtime.transfer.tcp.server import smooth


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A peer's TCP address, from its descriptor, and the KV heads of its pool. Raises TransferError when the descriptor
    is not usable."""

    host: str
    port: int
    token: bytes
    num_blocks: int
    heads: range

    @classmethod
    def read(cls, descriptor: dict[str, Any], block_bytes: int, heads: range) -> "TcpAddress":
        descriptor = part(descriptor, "tcp")
        token = secret(descriptor, "token", TOKEN_BYTES)
        host, port = descriptor.get("host"), whole(descriptor, "port")
        try:
            ipaddress.ip_address(host if isinstance(host, str) else "")  # a name could take seconds to look up
        except ValueError:
            raise TransferError("the peer's descriptor has no usable 'host'") from None
        if not 0 < port < 1 << 16:
            raise TransferError("the peer's descriptor has no usable 'port'")
        return cls(str(host), port, token, num_blocks(descriptor, block_bytes), heads)


CONNECT_TIMEOUT = 5.0


class BrokenStream(TransferError):
    """The connection ended. The peer may simply have closed an idle one."""


class TcpChannel:
    """At most one connection, opened again when needed: `socket` is None in between. `wait` sleeps until the socket is
    ready, the time is up or the owner has other work; `check` raises TransferError if the exchange must end. An
    exchange must be over by `deadline`, and the peer may be silent for at most `stall` seconds. With a `seed` only a
    peer with the same seed is accepted. `refused`: the peer's port was closed, so it is gone; `received` counts
    bytes."""

    def __init__(
        self,
        address: TcpAddress,
        stall: float,
        seed: bytes | None,
        wait: Callable[[int, float | None], bool],
        check: Callable[[float], None],
    ) -> None:
        self.address, self.stall, self.seed = address, stall, seed
        self.wait, self.check = wait, check
        self.socket: socket.socket | None = None
        self.ciphers: CipherPair | None = None
        self.deadline = 0.0
        self.refused = False
        self.received = 0

    def connect(self) -> None:
        """Open a new connection. Only a closed port means that the peer is gone: any other error may be temporary."""
        family = socket.AF_INET6 if ":" in self.address.host else socket.AF_INET
        try:
            self.socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            smooth(self.socket)
            code = self.socket.connect_ex((self.address.host, self.address.port))
            if code == errno.EINPROGRESS:
                self.progress(select.POLLOUT, CONNECT_TIMEOUT)
                code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        except OSError as error:
            code = error.errno or errno.EIO
        self.refused = code == errno.ECONNREFUSED
        if code:
            raise TransferError(f"the peer cannot be reached at {self.address.host} ({os.strerror(code)})")
        if self.seed is not None:
            self.agree(self.seed)

    def agree(self, seed: bytes) -> None:
        """Agree on the keys of this connection. The peer's first answer shows whether it has the same seed."""
        mine = KeyAgreement()
        self.send_plain(mine.public)
        theirs = bytes(self.fill(bytearray(PUBLIC_BYTES)))
        if theirs == NO_ROOM:
            raise TransferError(CROWDED)
        self.ciphers = mine.as_client(seed, theirs)

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = self.ciphers = None

    def send(self, data: bytes) -> None:
        if self.ciphers is None:
            self.send_plain(data)
            return
        ciphertext = self.ciphers.sending.close(data)
        self.send_plain(LENGTH.pack(len(ciphertext)) + ciphertext)

    def send_plain(self, data: bytes) -> None:
        assert self.socket is not None
        remaining = memoryview(data)
        while remaining:
            try:
                remaining = remaining[self.socket.send(remaining) :]
            except BlockingIOError:
                self.progress(select.POLLOUT, self.stall)
            except OSError as error:
                raise BrokenStream(f"the connection to the peer broke ({error.strerror})") from None

    def receive(self, place: bytearray | memoryview) -> bytearray | memoryview:
        """Fill `place` with a part of the answer."""
        if self.ciphers is None:
            return self.fill(place)
        place[:] = self.ciphers.receiving.open(self.fill(bytearray(len(place) + TAG_BYTES)))
        return place

    def fill(self, place: bytearray | memoryview) -> bytearray | memoryview:
        """Fill `place` with the next bytes received."""
        assert self.socket is not None
        remaining = memoryview(place)
        while remaining:
            self.check(self.deadline)
            try:
                count = self.socket.recv_into(remaining)
            except BlockingIOError:
                self.progress(select.POLLIN, self.stall)
                continue
            except OSError as error:
                raise BrokenStream(f"the connection to the peer broke ({error.strerror})") from None
            if not count:
                raise BrokenStream("the peer closed the connection")
            self.received += count
            remaining = remaining[count:]
        return place

    def progress(self, events: int, patience: float) -> None:
        """Wait until the socket is ready. Raises TransferError when that takes too long or the exchange was
        cancelled."""
        until = min(self.deadline, time.monotonic() + patience)
        while not self.wait(events, until):
            self.check(until)
