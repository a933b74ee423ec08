# SPDX-License-Identifier: Apache-2.0
"""The control socket against clients that are slow, malformed or gone."""

import json
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pontil.launcher.control.control_socket import (
    MAX_CLIENTS,
    MAX_REQUEST_BYTES,
    MAX_UNREAD_BYTES,
    NAME,
    ControlConnection,
    ControlSocket,
    user_of,
)
from pontil.launcher.foundation.errors import LaunchError

TURNS = 50


class ControlServerFixture:
    """A control socket and the loop around it; `asked` are the requests received."""

    def __init__(self, folder: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.asked: list[tuple[ControlConnection, dict[str, Any]]] = []
        self.control = ControlSocket(folder / NAME, self.selector, lambda *asked: self.asked.append(asked))
        self.control.open()
        self.clients: list[socket.socket] = []

    def client(self, data: bytes = b"") -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(10)
        made.connect(str(self.control.path))
        made.sendall(data)
        self.clients.append(made)
        return made

    def turn(self) -> None:
        """Run the loop until nothing happens any more."""
        for _ in range(TURNS):
            ready = self.selector.select(0)
            if not ready:
                return
            for key, _ in ready:
                key.data()
        raise AssertionError("a socket that always wants something")

    def close(self) -> None:
        self.control.close()
        for one in self.clients:
            one.close()
        self.selector.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ControlServerFixture]:
    made = ControlServerFixture(tmp_path)
    yield made
    made.close()


def lines(client: socket.socket) -> list[dict[str, Any]]:
    """Return all messages up to the end of the connection."""
    with client.makefile("rb") as file:
        return [json.loads(line) for line in file if line.strip()]


def test_a_verdict_is_heard_when_it_was_asked_for(server: ControlServerFixture) -> None:
    client = server.client(b'{"command": "x"}\n{"verdict": "early"}\n')
    server.turn()
    connection = server.asked[0][0]
    connection.ask(["decode:0"])
    server.control.flush()
    assert connection.verdict is None, "nothing that came before counts"
    client.sendall(b'{"verdict": "it dif')
    server.turn()
    assert connection.verdict is None
    client.sendall(b'fers\\u001b[31m"}\n{"verdict": ""}\n')
    server.turn()
    assert connection.verdict == "it differs [31m"
    connection.ask(["decode:1"])
    client.sendall(b'{"verdict": ""}\n')
    server.turn()
    assert connection.verdict == ""
    connection.end("done")
    server.turn()
    server.control.flush()
    assert [line for line in lines(client) if "try" in line] == [{"try": ["decode:0"]}, {"try": ["decode:1"]}]


@pytest.mark.parametrize("said", [b"", b"nonsense\n", b'{"verdict": 1}\n', b"x" * (MAX_REQUEST_BYTES + 1)])
def test_who_leaves_or_talks_nonsense_has_a_bad_verdict(server: ControlServerFixture, said: bytes) -> None:
    client = server.client(b'{"command": "x"}\n')
    server.turn()
    connection = server.asked[0][0]
    connection.ask(["decode:0"])
    client.sendall(said)
    if not said:
        client.close()
    server.turn()
    assert connection.verdict == "its command has left without a verdict"
    connection.ask(["decode:1"])
    assert connection.verdict == (None if said else "its command has left")


def test_a_request_in_pieces_is_one_and_the_rest_is_ignored(server: ControlServerFixture) -> None:
    client = server.client(b'{"comm')
    server.turn()
    assert not server.asked
    client.sendall(b'and": "x"}\n{"command": "y"}\n')
    server.turn()
    ((asked, request),) = server.asked
    assert request == {"command": "x"}
    asked.say("wait")
    asked.beat()
    asked.end("done", 0, pid=7)
    asked.say("never heard")
    server.control.flush()
    assert lines(client) == [{"say": "wait"}, {"end": "done", "code": 0, "facts": {"pid": 7}}]
    assert not server.control.clients


@pytest.mark.parametrize(
    "data", [b"nonsense\n", b"[1]\n", b"7\n", b"[" * 60000 + b"\n", b"x" * (MAX_REQUEST_BYTES + 1)]
)
def test_what_is_no_request_is_answered_and_let_go(server: ControlServerFixture, data: bytes) -> None:
    client = server.client(data)
    server.turn()
    (answer,) = lines(client)
    assert answer["code"] == 2 and not server.asked and not server.control.clients


def test_several_at_once_and_one_that_leaves(server: ControlServerFixture) -> None:
    first, second = server.client(b'{"command": 1}\n'), server.client(b'{"command": 2}\n')
    server.turn()
    assert sorted(request["command"] for _, request in server.asked) == [1, 2]
    second.close()
    server.turn()
    assert len(server.control.clients) == 1
    for asked, _ in server.asked:
        asked.end("done")
    server.control.flush()
    assert [line["end"] for line in lines(first)] == ["done"]


def test_who_does_not_read_is_let_go_and_holds_up_nobody(server: ControlServerFixture) -> None:
    server.client(b"{}\n")
    server.turn()
    ((asked, _),) = server.asked
    for _ in range(2 * MAX_UNREAD_BYTES // 1000):
        asked.say("x" * 1000)
        server.control.flush()
    assert asked.gone and not server.control.clients
    asked.say("still no complaint")


def test_a_crowd_is_turned_away(server: ControlServerFixture) -> None:
    for _ in range(MAX_CLIENTS):
        server.client()
        server.turn()
    late = server.client(b"{}\n")
    server.turn()
    (answer,) = lines(late)
    assert answer["code"] == 1 and "Too many" in answer["end"] and not server.asked


def test_the_kernel_says_who_connects(server: ControlServerFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pontil.launcher.control.control_socket.user_of", lambda connection: 4711)
    stranger = server.client(b"{}\n")
    server.turn()
    with pytest.raises(ConnectionResetError):
        stranger.recv(1)
    assert not server.asked and not server.control.clients
    left, right = socket.socketpair()
    with left, right:
        assert user_of(left) == Path("/proc/self").stat().st_uid


def test_it_ends_with_its_clients_and_leaves_no_file(server: ControlServerFixture) -> None:
    waiting = server.client(b"{}\n")
    server.turn()
    server.control.close()
    assert [line["end"] for line in lines(waiting)] == ["The launch has ended."]
    assert not server.control.path.exists()


def test_a_path_that_cannot_be_bound_is_a_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 200), tmp_path / "no" / "folder"):
        with pytest.raises(LaunchError, match="XDG_RUNTIME_DIR"):
            ControlSocket(path, selectors.DefaultSelector(), lambda client, request: None).open()
