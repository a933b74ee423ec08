# SPDX-License-Identifier: Apache-2.0
"""Thousands of connections: those beyond the limit are refused with a response, and the others served."""

import json
import logging
import resource
import socket
from contextlib import ExitStack

import pytest
from sanic import Sanic
from scripted_site import ScriptedSite
from scripted_worker import DEADLINE, eventually

from pontil.http.app.connection_limit import ConnectionLimit, connections_within, raise_descriptor_limit


def limit_of(made: ScriptedSite) -> ConnectionLimit:
    found: ConnectionLimit = Sanic.get_app(f"pontil-{made.proxy.incarnation}").ctx.connection_limit
    return found


def read_all(connection: socket.socket) -> bytes:
    answer = b""
    while chunk := connection.recv(65536):
        answer += chunk
    return answer


def test_connections_beyond_the_limit_are_refused(bare: ScriptedSite, caplog: pytest.LogCaptureFixture) -> None:
    bare.worker()
    limit_of(bare).most = 3
    with ExitStack() as stack:
        kept = [stack.enter_context(socket.create_connection(("127.0.0.1", bare.port), DEADLINE)) for _ in range(3)]
        for one in kept:
            one.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert one.recv(1024).startswith(b"HTTP/1.1 200 ")
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", bare.port), DEADLINE) as refused:
                head, body = read_all(refused).split(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in head
            assert "as many connections" in json.loads(body)["error"]["message"]
        kept[0].sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert kept[0].recv(1024).startswith(b"HTTP/1.1 200 "), "those that are there are served"
    eventually(lambda: is_served(bare), "room for others")
    said = [one for one in caplog.records if "connections are open" in one.getMessage()]
    assert len(said) == 1 and not [one for one in caplog.records if one.levelno >= logging.ERROR]


def is_served(made: ScriptedSite) -> bool:
    try:
        return made.complete(max_tokens=2).status == 200
    except ConnectionError:
        return False


def test_the_log_says_it_now_and_then() -> None:
    limit = ConnectionLimit(2)
    assert [limit.admits(others, 0.0) for others in (0, 1, 2, 3)] == [True, True, False, False]
    assert limit.complaints.complained == 0.0
    assert not limit.admits(2, 61.0) and limit.complaints.complained == 61.0


@pytest.mark.parametrize(("descriptors", "connections"), [(1024, 768), (1 << 20, 4096), (256, 16), (0, 16)])
def test_descriptors_are_left_for_everything_else(descriptors: int, connections: int) -> None:
    assert connections_within(descriptors) == connections


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 4096, [(4096, 4096)]),
        (4096, 4096, []),
        (1024, resource.RLIM_INFINITY, [(1 << 20, resource.RLIM_INFINITY)]),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, []),
        (1 << 20, 1 << 30, []),
    ],
)
def test_the_soft_limit_is_raised_to_what_is_allowed(
    soft: int, hard: int, raised: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: done.append(limits))
    raise_descriptor_limit()
    assert done == raised
