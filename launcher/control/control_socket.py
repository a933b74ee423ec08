# SPDX-License-Identifier: Apache-2.0
"""The control socket: commands reach the supervisor of a running launch as JSON lines over a unix socket.

A connection is one request, a line, and its reply: lines with `say`, for people, then one with `end` and an exit code.
A line with `try` asks for a verdict on workers, which the client sends as a line. Empty lines only show that the
supervisor is alive. Served by the supervisor's own selector; no call blocks on a client.
"""

import json
import os
import selectors
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pontil.launcher.foundation.errors import LaunchError
from pontil.runtime.foundation.line_pipe import json_object

NAME = "supervisor"
MAX_REQUEST_BYTES = 1 << 16
# Bytes that a client may leave unread before it is disconnected.
MAX_UNREAD_BYTES = 1 << 20
MAX_CLIENTS = 32
MAX_VERDICT = 600
CHUNK_BYTES = 1 << 16
CREDENTIALS = struct.Struct("3i")


class ControlConnection:
    """One connection. `request` is set once its line was received, and `verdict` once the client answered what was
    asked of it; writing to a client that has left is no error."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.received = b""
        self.outbox = b""
        self.request: dict[str, Any] | None = None
        self.heard = self.ended = self.gone = self.asks = False
        self.verdict: str | None = None

    def fileno(self) -> int:
        return self.connection.fileno()

    def say(self, text: str) -> None:
        self.send({"say": text})

    def end(self, text: str, code: int = 0, **facts: Any) -> None:
        """Send the final reply; `code` is the exit code of the command, `facts` are results for programs."""
        if not self.ended:
            self.send({"end": text, "code": code, "facts": facts})
            self.ended = True

    def beat(self) -> None:
        self.outbox += b"\n"

    def ask(self, workers: Sequence[str]) -> None:
        """Ask for the verdict on workers; one who has left has none."""
        self.verdict, self.asks, self.received = "its command has left" if self.gone else None, True, b""
        self.send({"try": list(workers)})

    def send(self, message: dict[str, Any]) -> None:
        if not self.ended:
            self.outbox += json.dumps(message).encode() + b"\n"

    def read(self) -> None:
        """Receive up to the end of the request line, and of a verdict that was asked for; anything else is
        ignored."""
        try:
            chunk = self.connection.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self.gone = self.gone or not chunk
        if self.heard:
            self.hear_verdict(chunk)
            return
        self.received += chunk
        line, ending, _ = self.received.partition(b"\n")
        if ending or len(line) > MAX_REQUEST_BYTES:
            self.heard = True
            self.request = json_object(line) if ending else None
            if self.request is None:
                self.end("The launcher does not understand that: use the same version of pontil for both.", 2)

    def hear_verdict(self, chunk: bytes) -> None:
        if not self.asks or self.verdict is not None:
            return
        self.received += chunk
        line, ending, _ = self.received.partition(b"\n")
        if ending or self.gone or len(line) > MAX_REQUEST_BYTES:
            answer = json_object(line) if ending else None
            verdict = None if answer is None else answer.get("verdict")
            self.verdict = shown(verdict) if isinstance(verdict, str) else "its command has left without a verdict"

    def flush(self) -> None:
        try:
            while self.outbox:
                self.outbox = self.outbox[self.connection.send(self.outbox) :]
        except BlockingIOError:
            self.gone = self.gone or len(self.outbox) > MAX_UNREAD_BYTES
        except OSError:
            self.gone = True


class ControlSocket:
    """A server that listens at `path` from `open` to `close`, and passes each client's request to `take`, once.

    Only this user and root are accepted: the run directory is private, and the kernel tells the peer's user id.
    """

    def __init__(
        self, path: Path, selector: selectors.BaseSelector, take: Callable[[ControlConnection, dict[str, Any]], None]
    ) -> None:
        self.path, self.selector, self.take = path, selector, take
        self.listener: socket.socket | None = None
        self.clients: list[ControlConnection] = []

    def open(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            listener.bind(str(self.path))
            self.path.chmod(0o600)
            listener.listen(MAX_CLIENTS)
        except OSError as error:
            listener.close()
            raise LaunchError(
                f"The control socket {self.path} cannot be made ({error.strerror or error}): "
                "set XDG_RUNTIME_DIR to a folder of yours with a short name."
            ) from error
        self.listener = listener
        self.selector.register(listener, selectors.EVENT_READ, self.accept)

    def accept(self) -> None:
        assert self.listener is not None
        try:
            connection, _ = self.listener.accept()
        except OSError:
            # The client has left already, or descriptors are short: neither can be mended here.
            return
        if user_of(connection) not in (os.getuid(), 0):
            connection.close()
            return
        client = ControlConnection(connection)
        self.clients.append(client)
        self.selector.register(client, selectors.EVENT_READ, lambda: self.attend(client))
        if len(self.clients) > MAX_CLIENTS:
            client.end("Too many commands wait for this launcher already: try again when some have ended.", 1)

    def attend(self, client: ControlConnection) -> None:
        """Handle a socket that is readable or writable."""
        if client not in self.clients:
            return
        client.read()
        if client.request is not None:
            request, client.request = client.request, None
            if not client.ended:
                self.take(client, request)
        self.flush_one(client)

    def flush(self) -> None:
        """Send all queued output."""
        for client in list(self.clients):
            self.flush_one(client)

    def flush_one(self, client: ControlConnection) -> None:
        client.flush()
        if client.gone or (client.ended and not client.outbox):
            self.drop(client)
        else:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.outbox else 0)
            if self.selector.get_key(client).events != events:
                self.selector.modify(client, events, lambda: self.attend(client))

    def drop(self, client: ControlConnection) -> None:
        client.gone = True
        self.clients.remove(client)
        self.selector.unregister(client)
        client.connection.close()

    def close(self) -> None:
        for client in list(self.clients):
            client.end("The launch has ended.", 1)
            client.flush()
            self.drop(client)
        if self.listener is not None:
            self.selector.unregister(self.listener)
            self.listener.close()
            self.listener = None
            with suppress(OSError):
                self.path.unlink()


def shown(text: str) -> str:
    """Return a client's words as one line that a terminal shows."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:MAX_VERDICT]).strip()


def user_of(connection: socket.socket) -> int:
    """Return the user id of the peer process, as the kernel knows it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(credentials)
    return int(user)
