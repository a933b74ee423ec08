# SPDX-License-Identifier: Apache-2.0
"""Thousands of connections: who sends a request is served, probes are answered, and what only waits gives way."""

import json
import logging
import random
import re
import resource
import socket
import time
from collections.abc import Hashable
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from effort import examples
from sanic import Sanic
from scripted_site import ScriptedSite
from scripted_worker import DEADLINE, eventually

from pontil.http.server import timed_protocol
from pontil.http.server.connection_limit import ConnectionLimit, connections_within, raise_descriptor_limit
from pontil.http.server.timed_protocol import TimedProtocol

PROBES = ("/health", "/ping", "/ready")
PART = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n"
LARGE, ANSWERS = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n", 4
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
# As many as the soft limit of descriptors allows, with both ends in this process.
CROWD = 2000


def limit_of(made: ScriptedSite) -> ConnectionLimit:
    found: ConnectionLimit = Sanic.get_app(f"pontil-{made.proxy.incarnation}").ctx.connection_limit
    return found


def read_all(connection: socket.socket) -> bytes:
    answer = b""
    while chunk := connection.recv(65536):
        answer += chunk
    return answer


def connected(made: ScriptedSite, stack: ExitStack, source: str = "127.0.0.1") -> socket.socket:
    address = ("127.0.0.1", made.port)
    return stack.enter_context(socket.create_connection(address, DEADLINE, source_address=(source, 0)))


def newest_has_begun(limit: ConnectionLimit) -> bool:
    """Return whether a part of a request has come on the connection that waits for the shortest time."""
    newest: Any = list(limit.waiting.networks["127.0.0.1"])[-1]
    return newest.is_receiving is True


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        connection.settimeout(DEADLINE)


def serve_some(made: ScriptedSite, number: int) -> list[object]:
    """Have the limit count as many requests that are being served, which are ended by `closes`."""
    limit, busy = limit_of(made), [object() for _ in range(number)]
    for one in busy:
        made.loop.call_soon_threadsafe(limit.opens, one, "busy", 0.0)
        made.loop.call_soon_threadsafe(limit.serves, one)
    eventually(lambda: len(limit.served) == number, "the busy ones")
    return busy


def test_a_crowd_without_a_byte_shuts_nobody_out(bare: ScriptedSite, caplog: pytest.LogCaptureFixture) -> None:
    bare.worker()
    raise_descriptor_limit()
    limit_of(bare).most = CROWD
    with ExitStack() as stack:
        crowd = [connected(bare, stack) for _ in range(CROWD)]
        kept = connected(bare, stack, "127.0.0.2")
        kept.sendall(HEALTH)
        assert kept.recv(1024).startswith(b"HTTP/1.1 200 ")
        more = [connected(bare, stack) for _ in range(100)]
        assert bare.ask("GET", "/ready").status == 200
        assert bare.complete(max_tokens=2).status == 200
        eventually(lambda: is_closed(crowd[100]), "the oldest to give way")
        assert not is_closed(more[-1]) and len(limit_of(bare).networks) <= CROWD
        kept.sendall(HEALTH)
        assert kept.recv(1024).startswith(b"HTTP/1.1 200 "), "an address with few connections keeps them"
    said = [one.getMessage() for one in caplog.records if "connections are open" in one.getMessage()]
    assert len(said) == 1 and "now of 127.0.0.1 with" in said[0]
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
    eventually(lambda: not limit_of(bare).networks, "all to be forgotten")


def test_probes_are_answered_while_all_others_are_served(bare: ScriptedSite) -> None:
    bare.worker()
    limit = limit_of(bare)
    limit.most = 32
    busy = serve_some(bare, limit.most - limit.reserve)
    for path in PROBES:
        assert bare.ask("GET", path).status == 200
    refused = bare.complete(max_tokens=2)
    assert refused.status == 503 and refused.headers["retry-after"] == "1"
    assert refused.json["error"]["code"] == "unavailable"
    bare.loop.call_soon_threadsafe(limit.closes, busy[0])
    eventually(lambda: bare.complete(max_tokens=2).status == 200, "room for one")


def test_nothing_gives_way_to_one_more_where_all_are_served(bare: ScriptedSite) -> None:
    limit = limit_of(bare)
    limit.most = 16
    serve_some(bare, limit.most)
    with ExitStack() as stack:
        head, body = read_all(connected(bare, stack)).split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in head
    assert "as many connections" in json.loads(body)["error"]["message"]


def test_a_part_of_a_request_is_told_when_it_gives_way(bare: ScriptedSite) -> None:
    limit = limit_of(bare)
    limit.most = 16
    with ExitStack() as stack:
        idle = [connected(bare, stack) for _ in range(limit.most - 2)]
        parts = [connected(bare, stack) for _ in range(2)]
        eventually(lambda: limit.waiting.largest == limit.most, "all of them")
        for one, part in zip(parts, (b"GET /health", PART), strict=True):
            one.sendall(part)
            eventually(lambda: newest_has_begun(limit), "the part")
        more = [connected(bare, stack) for _ in range(limit.most - 1)]
        more[-1].sendall(HEALTH)
        assert more[-1].recv(1024).startswith(b"HTTP/1.1 200 ")
        assert read_all(parts[0]).startswith(b"HTTP/1.1 503 ") and not is_closed(parts[1])
        assert all(read_all(one) == b"" for one in idle)


def unread(made: ScriptedSite, stack: ExitStack) -> socket.socket:
    """Ask for answers that are more than all buffers hold, and read none."""
    made.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
    asking = stack.enter_context(socket.socket())
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    asking.settimeout(DEADLINE)
    asking.connect(("127.0.0.1", made.port))
    asking.sendall(LARGE * ANSWERS)
    return asking


def whole(received: bytes) -> int:
    """Return how many answers of one kind these bytes hold."""
    head, end, _ = received.partition(b"\r\n\r\n")
    size = re.search(rb"(?i)content-length: (\d+)", head)
    return len(received) // (len(head + end) + int(size[1])) if end and size else 0


def taken(connection: socket.socket) -> int:
    """Return how many answers have come whole when the connection ends."""
    received = b""
    with suppress(ConnectionError):
        while piece := connection.recv(1 << 20):
            received += piece
    return whole(received)


def test_answers_that_nobody_takes_shut_nobody_out(bare: ScriptedSite) -> None:
    limit = limit_of(bare)
    limit.most = 16
    open_now: Any = limit.networks
    with ExitStack() as stack:
        silent = [unread(bare, stack) for _ in range(limit.most)]
        eventually(lambda: len(limit.networks) == limit.most, "all of them")
        eventually(lambda: not any(one.has_room for one in open_now), "full buffers")
        assert not limit.served
        for path in (*PROBES[:1], "/version"):
            assert bare.ask("GET", path).status == 200
        assert taken(silent[0]) < ANSWERS
        last, received = silent[-1], b""
        while whole(received) < ANSWERS:
            received += last.recv(1 << 20)
        last.sendall(HEALTH)
        assert last.recv(1024).startswith(b"HTTP/1.1 200 "), "who takes them has the rest, and stays"
    eventually(lambda: not limit.networks, "all to be forgotten")


def test_whole_answers_are_not_kept_for_who_takes_none(bare: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_protocol, "READER_PATIENCE", 0.2)
    with ExitStack() as stack:
        silent = unread(bare, stack)
        eventually(lambda: bool(limit_of(bare).networks), "the connection")
        eventually(lambda: not limit_of(bare).networks, "its end")
        assert taken(silent) < ANSWERS


class SlowTransport:
    """A transport whose client takes a byte between two looks, as long as `left` tells."""

    def __init__(self, left: list[int]) -> None:
        self.left, self.aborted = left, False

    def get_write_buffer_size(self) -> int:
        return self.left.pop(0)

    def abort(self) -> None:
        self.aborted = True


def test_who_takes_some_is_waited_for() -> None:
    later: list[tuple[Any, ...]] = []
    made: Any = object.__new__(TimedProtocol)
    made.transport = SlowTransport([9, 8, 7, 7])
    made.loop = SimpleNamespace(call_later=lambda *told: later.append(told))
    made.watch_reader()
    while later:
        assert not made.transport.aborted
        seconds, look, *told = later.pop()
        assert seconds == timed_protocol.READER_PATIENCE
        look(*told)
    assert made.transport.aborted and not made.transport.left


def test_a_connection_without_a_byte_is_closed(bare: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_protocol, "FIRST_BYTE_SECONDS", 0.2)
    begun = time.monotonic()
    with ExitStack() as stack:
        silent, spoken = connected(bare, stack), connected(bare, stack)
        spoken.sendall(HEALTH)
        assert read_all(silent) == b"" and time.monotonic() - begun >= 0.2
        assert spoken.recv(1024).startswith(b"HTTP/1.1 200 ")
        spoken.sendall(HEALTH)
        assert spoken.recv(1024).startswith(b"HTTP/1.1 200 "), "the deadline is for the first byte only"


def random_moves(limit: ConnectionLimit, draw: random.Random) -> None:
    """Open, move and close connections of some networks at random, and check after each move what must hold."""
    opened, served = 0, set[Hashable]()
    for _ in range(400):
        present = list(limit.networks)
        move = draw.choice(("open", "open", "waits", "serves", "closes"))
        if move == "open" or not present:
            network = f"n{min(int(draw.expovariate(0.7)), 5)}"
            counts = {name: len(group) for name, group in limit.waiting.networks.items()}
            counts[network] = counts.get(network, 0) + 1
            is_full = len(limit.networks) >= limit.most
            where = dict(limit.networks) | {opened: network}
            gone = limit.opens(opened, network, 0.0)
            assert (gone is not None) == is_full
            if gone is not None:
                assert gone not in served, "what is served stays"
                assert counts[where[gone]] == max(counts.values()), "the most crowded network gives way"
            opened += 1
        else:
            one = draw.choice(present)
            if move == "serves" and not limit.has_room("/v1/models"):
                continue
            getattr(limit, move)(one)
            (served.add if move == "serves" else served.discard)(one)
        check(limit, served)


def check(limit: ConnectionLimit, served: set[Hashable]) -> None:
    groups = limit.waiting.networks
    waiting = {one: name for name, group in groups.items() for one in group}
    assert limit.served == served and not served & waiting.keys()
    assert waiting | {one: limit.networks[one] for one in served} == limit.networks, "each is in one place"
    assert len(limit.networks) <= limit.most and len(served) <= limit.most - limit.reserve
    sizes = {name: len(group) for name, group in groups.items()}
    assert {name: size for size, names in limit.waiting.sizes.items() for name in names} == sizes
    assert limit.waiting.largest == max(sizes.values(), default=0)


def test_a_network_keeps_its_equal_share() -> None:
    """Virtual time: the most crowded network gives way, a served connection never, and the tables agree."""
    draw = random.Random(5)
    for _ in range(examples(40, 5000)):
        random_moves(ConnectionLimit(draw.randrange(2, 40), PROBES), draw)


def test_one_of_few_stays_however_many_come() -> None:
    limit = ConnectionLimit(64, PROBES)
    assert limit.opens("quiet", "client", 0.0) is None
    gone = [limit.opens(number, f"crowd-{number % 3}", 0.0) for number in range(5000)]
    assert "quiet" not in gone and "quiet" in limit.networks
    assert [one for one in gone if one is not None] == list(range(5000 - 63)), "the oldest of the crowd"


def test_a_request_that_begins_makes_its_connection_young() -> None:
    limit = ConnectionLimit(3)
    gone = [limit.opens(name, "n", 0.0) for name in "abc"]
    limit.waits("a")
    assert [*gone, limit.opens("d", "n", 0.0)] == [None, None, None, "b"]


def test_what_has_given_way_is_not_counted_again() -> None:
    limit = ConnectionLimit(2)
    gone = [limit.opens(name, "n", 0.0) for name in "abc"]
    assert gone == [None, None, "a"]
    for late in (limit.waits, limit.serves, limit.closes):
        late("a")
    assert sorted(map(str, limit.networks)) == ["b", "c"] and not limit.served


def test_the_log_says_it_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    limit = ConnectionLimit(1)
    for name, now in (("a", 0.0), ("b", 1.0), ("c", 2.0), ("d", 62.0)):
        limit.opens(name, "n", now)
    assert len(caplog.records) == 2 and limit.complaints.complained == 62.0


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
