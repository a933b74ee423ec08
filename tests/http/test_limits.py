# SPDX-License-Identifier: Apache-2.0
"""Limits on a client before its request is valid: bytes, time, and content type (F3)."""

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_site import ScriptedSite, site
from scripted_worker import DEADLINE

from pontil.runtime.tokenizer.tokenizer import Tokenizer

BODY = json.dumps({"prompt": "hi", "max_tokens": 2}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
KEY = b"a-key-of-a-client"
LONG = b"content-length: 100000\r\n\r\n{"


@pytest.fixture
def hasty(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedSite]:
    """A server whose timeouts are a fraction of a second."""
    for name in (
        "server.timed_protocol.FIRST_BYTE_SECONDS", "server.timed_protocol.RECEIVE_SECONDS",
        "server.service.RECEIVE_SECONDS", "server.service.IDLE_SECONDS",
    ):  # fmt: skip
        monkeypatch.setattr(f"pontil.http.{name}", 0.4)
    with site(tmp_path, tokenizer) as made:
        made.worker()
        yield made


def answered(site: ScriptedSite, data: bytes, drop: bytes = b"") -> bytes:
    """Return the response up to the server's close, sending another `drop` whenever nothing has arrived for a while."""
    answer, deadline = b"", time.monotonic() + DEADLINE
    with socket.create_connection(("127.0.0.1", site.port), timeout=0.02) as connection:
        connection.sendall(data)
        while time.monotonic() < deadline:
            try:
                chunk = connection.recv(65536)
            except TimeoutError:
                if drop:
                    connection.sendall(drop)
                continue
            except ConnectionError:
                return answer
            if not chunk:
                return answer
            answer += chunk
    raise AssertionError(f"the server did not close: {answer!r}")


@pytest.mark.parametrize("drop", [b"a", b""], ids=["one byte now and then", "silence"])
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"G", 408),
        (HEAD + b"x: ", 408),
        (HEAD + LONG, 408),
        (HEAD.replace(b"completions", b"nothing") + LONG, 404),
        (HEAD.replace(b"POST", b"GET") + LONG, 405),
        (HEAD + b"upgrade: websocket\r\n" + LONG, 408),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", 408),
    ],
    ids=lambda value: str(value)[-30:],
)
def test_who_does_not_send_a_request_is_not_waited_for(
    hasty: ScriptedSite, data: bytes, status: int, drop: bytes
) -> None:
    answer = answered(hasty, data, drop)
    if data.endswith(b"chunked\r\n\r\n") and drop:
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 408 ")), "that is no chunk"
        return
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert "error" in json.loads(answer.split(b"\r\n\r\n", 1)[1])
    assert hasty.complete(max_tokens=2).status == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /v1/models HTTP/1.1\r\nauthorization: Bearer %b\r\nx: " % KEY, 408),
        (HEAD + b"authorization: Bearer %b\r\nexpect: something\r\ncontent-length: 2\r\n\r\n{}" % KEY, 417),
    ],
)
def test_what_fails_before_there_is_a_request_says_so_where_keys_are_needed(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, data: bytes, status: int
) -> None:
    monkeypatch.setattr("pontil.http.server.timed_protocol.RECEIVE_SECONDS", 0.2)
    with site(tmp_path, tokenizer, callers=(("someone", hashlib.sha256(KEY).hexdigest()),)) as made:
        head, body = answered(made, data, b"x").split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status) and b"www-authenticate" not in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_a_connection_without_a_request_is_closed(hasty: ScriptedSite) -> None:
    assert answered(hasty, b"") == b""
    request = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    assert answered(hasty, request).startswith(b"HTTP/1.1 200 "), "and after one request, when no other comes"


def test_a_request_behind_a_slow_answer_has_its_own_time(hasty: ScriptedSite) -> None:
    """A part of it came before the answer; the deadline begins when it is read."""
    hasty.workers[0].pace = 0.3
    body = BODY.replace(b"2", b"9")
    request = HEAD + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", hasty.port), DEADLINE) as connection:
        connection.sendall(request + request[:-1])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(request[-1:])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_slow_answer_is_waited_for(hasty: ScriptedSite) -> None:
    """The receive timeout ends with the request; the response may take longer."""
    hasty.workers[0].pace = 0.3
    for stream in (False, True):
        answer = hasty.complete(max_tokens=9, stream=stream)
        assert answer.status == 200 and (not stream or answer.events[-1] == "[DONE]")


@pytest.mark.parametrize(
    ("declared", "status"),
    [
        (None, 200),
        ("application/json", 200),
        ("Application/JSON; charset=UTF-8", 200),
        ('application/json;charset="utf-8"', 200),
        ("application/vnd.api+json", 200),
        ("application/json; charset=latin-1", 415),
        ("text/plain;charset=UTF-8", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("", 415),
        ("json", 415),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_a_body_is_what_it_is_declared_to_be(pair: ScriptedSite, path: str, declared: str | None, status: int) -> None:
    body = BODY if path == "/v1/completions" else b'{"prompt": "hi"}'
    answer = pair.ask("POST", path, body, {} if declared is None else {"content-type": declared})
    assert answer.status == status, answer.body
    if status == 415:
        assert answer.json["error"]["code"] == "unsupported_media_type"


def test_a_page_in_a_browser_has_to_declare_it(pair: ScriptedSite) -> None:
    """A browser sends any type but JSON without a preflight, and the server denies preflights."""
    origin = {"origin": "https://example.com"}
    assert pair.ask("POST", "/v1/completions", BODY, origin).status == 415
    assert pair.ask("POST", "/v1/completions", BODY, origin | {"content-type": "text/plain"}).status == 415
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    answer = pair.ask("OPTIONS", "/v1/completions", None, origin | asked)
    assert answer.status == 204 and not [name for name in answer.headers if "access-control" in name.lower()]


def test_the_head_has_a_limit_of_its_own(pair: ScriptedSite) -> None:
    assert pair.ask("GET", "/health", None, {"x": "a" * 15_000}).status == 200
    answer = pair.ask("GET", "/health", None, {"x": "a" * 17_000})
    assert answer.status == 431 and "16384 bytes" in answer.json["error"]["message"]


def test_heads_of_what_can_be_read(pair: ScriptedSite) -> None:
    for path in ("/health", "/ready", "/v1/models", "/metrics", "/version", "/openapi.json"):
        answer = pair.ask("HEAD", path)
        assert answer.status == 200 and not answer.body and int(answer.headers["content-length"]) > 0
