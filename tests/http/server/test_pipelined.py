# SPDX-License-Identifier: Apache-2.0
"""Requests that come many at once on one connection: the event loop has its turns between them."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sanic import Request, Sanic
from scripted_site import ScriptedSite
from scripted_worker import DEADLINE

from pontil.http.access.keyring import Caller
from pontil.http.server import timed_protocol
from pontil.http.server.raw_head import chunk_fault

MANY = 500
HEAD = b"POST /v1/nothing HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"


class LoopTurns:
    """The number of turns of a site's event loop, counted by a callback in each."""

    def __init__(self, made: ScriptedSite) -> None:
        self.loop, self.number, self.counting = made.loop, 0, True

    def turn(self) -> None:
        self.number += 1
        if self.counting:
            self.loop.call_soon(self.turn)


@contextmanager
def turns_of(made: ScriptedSite) -> Iterator[LoopTurns]:
    turns = LoopTurns(made)
    made.loop.call_soon_threadsafe(turns.turn)
    try:
        yield turns
    finally:
        turns.counting = False


def read_whole(made: ScriptedSite, data: bytes) -> bytes:
    received = b""
    with socket.create_connection(("127.0.0.1", made.port), DEADLINE) as connection:
        connection.sendall(data)
        while piece := connection.recv(1 << 20):
            received += piece
    return received


def test_requests_on_one_connection_leave_turns_to_others(pair: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Sanic.get_app(f"pontil-{pair.proxy.incarnation}").ctx.access
    admit: Callable[[Request], Caller] = access.admit
    seen = list[int]()
    one = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with turns_of(pair) as turns:

        def noting(request: Request) -> Caller:
            seen.append(turns.number)
            return admit(request)

        monkeypatch.setattr(access, "admit", noting, raising=False)
        received = read_whole(pair, one * MANY + one.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    assert received.count(b"HTTP/1.1 200 ") == MANY + 1
    assert len(set(seen)) == len(seen) == MANY + 1, "no two of them in one turn"


def test_chunks_of_a_body_leave_turns_to_others(pair: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set[int]()
    with turns_of(pair) as turns:

        def noting(data: bytearray) -> bool | None:
            seen.add(turns.number)
            return chunk_fault(data)

        monkeypatch.setattr(timed_protocol, "chunk_fault", noting)
        received = read_whole(pair, HEAD + b"1\r\na\r\n" * MANY + b"0\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 404 ")
    assert len(seen) > MANY, "no two of them in one turn"
