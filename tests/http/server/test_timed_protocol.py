# SPDX-License-Identifier: Apache-2.0
"""Connections of a server that leaves: a request that is on its way is answered, and then the connection ends."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sanic import Sanic
from scripted_site import ScriptedSite
from scripted_worker import DEADLINE, ScriptedWorker, eventually, proper

from pontil.runtime.wire.messages import Message, Submit

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Leaving:
    """A site whose server leaves as Sanic has it: it tells every connection to close if it is idle."""

    def __init__(self, made: ScriptedSite, stack: ExitStack) -> None:
        self.made, self.stack = made, stack
        self.app: Any = Sanic.get_app(f"pontil-{made.proxy.incarnation}")

    def connect(self) -> socket.socket:
        count = len(self.connections)
        made = self.stack.enter_context(socket.create_connection(("127.0.0.1", self.made.port), DEADLINE))
        eventually(lambda: len(self.connections) > count, "the connection")
        return made

    @property
    def connections(self) -> list[Any]:
        return list(self.app.ctx.connection_limit.networks)

    def leave(self, linger: float) -> None:
        self.app.ctx.linger = linger
        self.made.loop.call_soon_threadsafe(self.tell)

    def tell(self) -> None:
        for connection in self.connections:
            connection.signal.stopped = True
            connection.close_if_idle()


@pytest.fixture
def leaving(bare: ScriptedSite) -> Iterator[Leaving]:
    with ExitStack() as stack:
        yield Leaving(bare, stack)


def answer(connection: socket.socket) -> bytes:
    """Return all that comes until the server ends the connection."""
    said = b""
    while piece := connection.recv(65536):
        said += piece
    return said


def test_a_request_on_its_way_is_answered(leaving: Leaving) -> None:
    fresh, used = leaving.connect(), leaving.connect()
    used.sendall(HEALTH)
    assert used.recv(1024).startswith(b"HTTP/1.1 200 ")
    leaving.leave(DEADLINE)
    for one in (fresh, used):
        one.sendall(HEALTH)
        said = answer(one).lower()
        assert said.startswith(b"http/1.1 200 ") and b"connection: close" in said


def test_connections_without_a_request_are_closed_after_a_moment(leaving: Leaving) -> None:
    idle = leaving.connect()
    leaving.leave(0.05)
    assert answer(idle) == b""


def test_a_connection_whose_stream_ends_is_closed(leaving: Leaving) -> None:
    """Its head said that the connection stays, before the server left."""
    left = threading.Event()

    def script(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        first, *others = proper(worker, submit)
        yield first
        left.wait(DEADLINE)
        yield from others

    leaving.made.worker(script=script)
    body = b'{"prompt": "hi", "max_tokens": 4, "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    stream = leaving.connect()
    stream.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    begun = stream.recv(65536)
    assert b"connection: keep-alive" in begun.lower()
    leaving.leave(0.05)
    left.set()
    assert b"data: [DONE]" in begun + answer(stream)
