# SPDX-License-Identifier: Apache-2.0
"""Heads that a front could read in another way are refused, and no request is read out of a body; any bytes get an
answer or a close."""

import json
import logging
import random
import re
import socket
from collections.abc import Callable, Iterator

import pytest
from effort import examples, is_long
from sanic import Request, Sanic
from scripted_site import ScriptedSite
from scripted_worker import DEADLINE

from pontil.http.access.keyring import Caller
from pontil.http.server.raw_head import MAX_HEAD_BYTES, chunk_fault, head_fault

HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST = b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
REFUSED_FRAMING = [
    b"Content-Length : %d" % len(HIDDEN),
    b"Transfer-Encoding : chunked",
    b"Content-Length\t: %d" % len(HIDDEN),
    b" Content-Length: %d" % len(HIDDEN),
    b"x: y\r\n Content-Length: %d" % len(HIDDEN),
    b"Content-Length: %d\r\nContent-Length: %d" % (len(HIDDEN), len(HIDDEN)),
    b"Content-Length: 0\r\nContent-Length: %d" % len(HIDDEN),
    b"Content-Length: 0, %d" % len(HIDDEN),
    b"Content-Length: +%d" % len(HIDDEN),
    b"Content-Length: 0x10",
    b"Content-Length: 1_0",
    b"Content-Length: \xd9\xa5",
    b"Content-Length:",
    b"Content-Length: 0\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: %d" % len(HIDDEN),
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding: \xc2\x85chunked",
    b"Transfer-Encoding:\r\n chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    b"x: y\nContent-Length: %d" % len(HIDDEN),
    b"x: y\rContent-Length: %d" % len(HIDDEN),
    b"x: \x00",
    b"Content\x00-Length: 4",
    b"C\xc3\xb6ntent-Length: 4",
    b": y",
    b"no colon",
    b"x: y\r",
    b"host: elsewhere",
]
REFUSED_LINES = [
    b"GET :::: HTTP/1.1",
    b"CONNECT a:80 HTTP/1.1",
    b"GET http:// HTTP/1.1",
    b"GET http://localhost HTTP/1.1",
    b"GET http://localhost?a/b HTTP/1.1",
    b"GET http://[::: HTTP/1.1",
    b"GET /\x00 HTTP/1.1",
    b"\x00\x00\x00",
    b"GET /a b HTTP/1.1",
    b"GET /a\tHTTP/1.1",
    b"GET  /a HTTP/1.1",
    b"GET /\xc3\xb6 HTTP/1.1",
    b"G\xc3\x8bT / HTTP/1.1",
    b"G(T / HTTP/1.1",
    b"GET /",
    b"",
    b"GET / HTTP/2.0",
    b"GET / http/1.1",
    b"PRI * HTTP/2.0",
]
BAD_CHUNKS = [
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b" 5\r\nhello\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n",
    b"\r\n5\r\nhello\r\n0\r\n\r\n",
    b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhelloXX0\r\n\r\n",
    b"\xd9\xa5\r\nhello\r\n0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"5;" + b"a" * 80 + b"\r\nhello\r\n0\r\n\r\n",
    b"11111111111111111\r\n",
    b"0\r\nx: y\r\n\r\n",
]


@pytest.fixture
def served(pair: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The paths of requests that were parsed."""
    access = Sanic.get_app(f"pontil-{pair.proxy.incarnation}").ctx.access
    paths: list[str] = []
    admit: Callable[[Request], Caller] = access.admit

    def noting(request: Request) -> Caller:
        if not paths or getattr(request.ctx, "noted", None) is None:
            request.ctx.noted = True
            paths.append(request.path)
        return admit(request)

    monkeypatch.setattr(access, "admit", noting, raising=False)
    yield paths


def answers(made: ScriptedSite, data: bytes, patience: float = DEADLINE) -> bytes:
    """Return what comes back, up to the close, or until nothing comes any more."""
    with socket.create_connection(("127.0.0.1", made.port), patience) as connection:
        received = b""
        try:
            connection.sendall(data)
            while chunk := connection.recv(65536):
                received += chunk
        except (ConnectionError, TimeoutError):
            pass
    return received


def parsed(received: bytes) -> list[int]:
    """Return the statuses of well-formed answers, one after the other; raises AssertionError for anything else."""
    statuses = []
    while received:
        head, end, rest = received.partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        assert end and found, received[:200]
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)(?:\r\n|$)", head)
        # The answer to HEAD states a length that it does not have.
        size = int(length[1]) if length and rest[:9] not in (b"", b"HTTP/1.1 ") else 0
        assert len(rest) >= size
        statuses.append(int(found[1]))
        received = rest[size:]
    return statuses


@pytest.mark.parametrize("framing", REFUSED_FRAMING, ids=lambda one: repr(one)[:50])
def test_an_uncertain_end_of_a_request_is_refused(
    pair: ScriptedSite, served: list[str], framing: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    received = answers(
        pair, b"POST /v1/nothing HTTP/1.1\r\nhost: localhost\r\n" + framing + b"\r\n\r\n" + HIDDEN + LAST
    )
    assert parsed(received) == [400] and served == []
    error = json.loads(received.split(b"\r\n\r\n", 1)[1])["error"]
    assert error["type"] == "invalid_request_error" and "HTTP/1.1" in error["message"]
    assert b"connection: close" in received and b"x-request-id: " in received
    assert not [one for one in caplog.records if one.exc_info]


@pytest.mark.parametrize("line", REFUSED_LINES, ids=lambda one: repr(one)[:50])
def test_a_malformed_request_line_is_refused_without_a_traceback(
    pair: ScriptedSite, served: list[str], line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert parsed(answers(pair, line + b"\r\nhost: localhost\r\n\r\n" + LAST)) == [400]
    assert served == [] and not [one for one in caplog.records if one.exc_info]


@pytest.mark.parametrize("body", BAD_CHUNKS, ids=lambda one: repr(one)[:50])
def test_a_chunk_that_can_be_read_in_two_ways_ends_the_connection(
    pair: ScriptedSite, served: list[str], body: bytes
) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    assert parsed(answers(pair, head + body + HIDDEN + LAST)) == [400]
    assert served == ["/v1/completions"]


def test_a_refused_head_is_logged_in_one_short_line_a_minute(
    pair: ScriptedSite, caplog: pytest.LogCaptureFixture
) -> None:
    Sanic.get_app(f"pontil-{pair.proxy.incarnation}").ctx.malformed_heads.complained = None
    for number in range(5):
        assert parsed(answers(pair, b"GET :::: HTTP/1.1\r\nx: %d%s\r\n\r\n" % (number, b"y" * 5000))) == [400]
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(said) == 1 and len(said[0]) < 300 and "\n" not in said[0]


def test_the_log_shows_no_headers_of_a_refused_head(pair: ScriptedSite, caplog: pytest.LogCaptureFixture) -> None:
    Sanic.get_app(f"pontil-{pair.proxy.incarnation}").ctx.malformed_heads.complained = None
    for end in (b"\n", b"\r"):
        assert parsed(answers(pair, b"GET / HTTP/1.1" + end + b"authorization: Bearer secret\r\n\r\n")) == [400]
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(said) == 1 and "GET / HTTP/1.1" in said[0] and "Bearer" not in said[0]


def test_too_large_a_head_is_431(pair: ScriptedSite) -> None:
    assert parsed(answers(pair, b"GET /version HTTP/1.1\r\nx: " + b"a" * MAX_HEAD_BYTES)) == [431]


@pytest.mark.parametrize(
    "line", [b"GET /version HTTP/1.1", b"GET http://localhost/version HTTP/1.1", b"OPTIONS * HTTP/1.1"]
)
def test_well_formed_lines_pass(pair: ScriptedSite, line: bytes) -> None:
    first, last = parsed(answers(pair, line + b"\r\nhost: localhost\r\n\r\n" + LAST))
    assert last == 200 and first in (200, 204)


def test_chunks_pass_however_they_are_cut(pair: ScriptedSite, served: list[str]) -> None:
    head = b"POST /v1/nothing HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    data = head + b"00005;name=value\r\nhello\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN) + LAST
    with socket.create_connection(("127.0.0.1", pair.port), DEADLINE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(len(data)):
            connection.sendall(data[number : number + 1])
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    assert parsed(received) == [404, 200] and served == ["/v1/nothing", "/version"]


def test_what_is_checked_is_pure() -> None:
    assert head_fault(b"GET / HTTP/1.1\r\nhost: a\r\nx:\r\nx: \xff\t,") is None
    assert head_fault(b"POST / HTTP/1.0\r\ntransfer-encoding: chunked") is not None
    assert [chunk_fault(data) for data in (b"", b"\r", b"\r\n", b"\r\nff", b"\r\nff\r\nx")] == [None] * 4 + [False]


METHODS = [b"GET", b"POST", b"HEAD", b"OPTIONS", b"DELETE", b"get", b"CONNECT", b"TRACE", b"NONE", b"\x16\x03\x01"]
TARGETS = [
    b"/version", b"/v1/nothing", b"/v1/models/%ff%00%zz", b"/v1/models/..%2f..", b"*", b"/%", b"/a?b=%zz&&=;c",
    b"//", b"/\\", b"/#x", b"http://a/version", b"HTTP://a:x/version", b"https://[::1/", b":", b"a:80", b"", b"/a/../b",
    b"/v1/responses/%d8%00", b"/;", b"/" + b"a" * 9000,
]  # fmt: skip
FIELDS = [
    b"host: localhost", b"connection: keep-alive", b"connection: close", b"Connection: upgrade",
    b"upgrade: websocket", b"upgrade: h2c", b"expect: 100-continue", b"expect: x", b"authorization: Bearer \xff",
    b"authorization: Basic", b"content-type: application/json; charset=\xff", b"content-encoding: gzip",
    b"origin: \xffnull", b"x-request-id: \xf0\x9f", b"traceparent: 00-x-y-z", b"accept: \xc3", b"cookie: =;=\xff",
    b"x-forwarded-for: a,b", b"forwarded: for=\"", b"last-event-id: 1.1.1", b"range: bytes=9-1", b"te: trailers",
]  # fmt: skip
NOISE = [b"\r", b"\n", b"\x00", b" ", b"\t", b":", b"\xff", b"\r\n", b",", b";", b"\x0b", b"0", b"-", b"chunked"]


def framed(source: random.Random) -> tuple[bytes, bytes]:
    """Return a framing's header and a body with a request inside, often right."""
    kind = source.random()
    if kind < 0.4:
        return b"content-length: %d" % len(HIDDEN), HIDDEN
    if kind < 0.8:
        cut = source.randrange(1, len(HIDDEN))
        chunks = [b"%x\r\n%b\r\n" % (len(one), one) for one in (HIDDEN[:cut], HIDDEN[cut:])]
        return b"transfer-encoding: chunked", b"".join(chunks) + b"0\r\n\r\n"
    return source.choice(REFUSED_FRAMING), HIDDEN


def example(source: random.Random) -> bytes:
    """Return a request with changes to its head, and the last request behind it."""
    framing, body = framed(source)
    fields = [b"host: localhost", framing, *source.sample(FIELDS, source.randrange(4))]
    source.shuffle(fields)
    line = b" ".join((source.choice(METHODS), source.choice(TARGETS), b"HTTP/1.%d" % source.choice((0, 1, 1, 1))))
    head = bytearray(b"\r\n".join([line, *fields]) + b"\r\n\r\n")
    for _ in range(source.choice((0, 0, 1, 1, 2, 4))):
        place = source.randrange(len(head))
        match source.randrange(3):
            case 0:
                head[place:place] = source.choice(NOISE)
            case 1:
                del head[place : place + source.randrange(1, 4)]
            case _:
                head[place] = source.randrange(256)
    return bytes(head) + body + LAST


def test_random_heads_get_an_answer_or_a_close(
    pair: ScriptedSite, served: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A request inside a body is parsed only where the head, changed as it is, gives the body another length or none;
    so the model of the framing is asked, not the server."""
    source = random.Random() if is_long() else random.Random(34)
    for number in range(examples(150, 20_000)):
        # Another name for each: a slow machine may read an earlier one after the patience for it.
        path = f"/{number:06}"
        data = example(source).replace(b"/hidden", path.encode())
        statuses = parsed(answers(pair, data, 0.05))
        # One of 100, for `expect: 100-continue`, comes before an answer.
        final = [status for status in statuses if status >= 200]
        assert len(final) <= 3 and all(100 <= status < 600 for status in statuses), data
        assert 500 not in statuses, data
        if path in served:
            assert has_no_body(data), data
        served.clear()
        failed = [one for one in caplog.records if one.exc_info or "Traceback" in one.getMessage()]
        assert not failed, (data, failed)
        caplog.clear()
    assert pair.complete(max_tokens=2).status == 200


def has_no_body(data: bytes) -> bool:
    """Return whether a head states no body, or a shorter one, in the only ways in which it may be stated."""
    head = data.split(b"\r\n\r\n")[0].lower()
    length = re.search(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*(?:\r\n|$)", head)
    chunked = re.search(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*(?:\r\n|$)", head)
    return chunked is None and (length is None or int(length[1]) < len(HIDDEN))
