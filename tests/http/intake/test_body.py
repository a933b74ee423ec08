# SPDX-License-Identifier: Apache-2.0
"""Limits on bodies: the bytes of one, the bytes of all, and the event loop's time."""

import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sanic
from sanic import Sanic
from scripted_site import HttpAnswer, ScriptedSite, site
from scripted_worker import DEADLINE, eventually

from pontil.http.intake import body as request_body
from pontil.http.intake.body import MOST_BODY, BodyReader, largest_body
from pontil.http.schema.json_body import LARGE_BODY, parse_body
from pontil.runtime.tokenizer.tokenizer import Tokenizer

LIMIT = 100_000


@pytest.fixture
def served(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer, max_body_size=LIMIT) as made:
        made.worker()
        yield made


def bodies_of(made: ScriptedSite) -> BodyReader:
    routes = Sanic.get_app(f"pontil-{made.proxy.incarnation}").router.routes
    (handler,) = {route.handler for route in routes if route.path == "tokenize" and "POST" in route.methods}
    found: BodyReader = handler.__wrapped__.__self__.bodies
    return found


def begin(made: ScriptedSite, length: int, sent: int, path: str = "/tokenize") -> http.client.HTTPConnection:
    """Start a request of which only `sent` bytes of the body are sent."""
    connection = made.connect()
    connection.putrequest("POST", path)
    connection.putheader("content-length", str(length))
    connection.endheaders()
    connection.send((b'{"prompt": "' + b"a" * length)[:sent])
    return connection


@pytest.mark.parametrize(
    ("context", "most"), [(None, MOST_BODY), (512, (64 * 512 * 8) + (1 << 20)), (8192, 5 << 20), (1 << 20, MOST_BODY)]
)
def test_the_context_says_how_large_a_body_may_be(context: int | None, most: int) -> None:
    assert largest_body(context) == most


def test_without_an_option_the_workers_context_decides(bare: ScriptedSite) -> None:
    assert bodies_of(bare).most() == MOST_BODY
    bare.worker(max_model_len=512)
    assert bodies_of(bare).most() == largest_body(512)


def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(served: ScriptedSite) -> None:
    answer = HttpAnswer(begin(served, LIMIT + 1, 1).getresponse())
    assert answer.status == 413 and f"larger than {LIMIT} bytes" in answer.json["error"]["message"]
    assert bodies_of(served).buffered.total == 0


def test_one_of_unknown_length_is_refused_where_it_becomes_too_large(served: ScriptedSite) -> None:
    connection = served.connect()
    connection.request("POST", "/tokenize", iter([b'{"prompt": "a"', b" " * (LIMIT - 20), b"}"]), encode_chunked=True)
    assert HttpAnswer(connection.getresponse()).status == 200
    with socket.create_connection(("127.0.0.1", served.port), timeout=DEADLINE) as raw:
        raw.sendall(b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        raw.sendall(b"%x\r\n" % (LIMIT + 1) + b"a" * (LIMIT + 1))
        assert raw.recv(1024).startswith(b"HTTP/1.1 413 ")


def test_all_bodies_together_are_bounded(served: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large bodies are refused while others fill the buffer, small ones are not, and the memory is free again once
    those clients disconnect."""
    bodies = bodies_of(served)
    monkeypatch.setattr(bodies.buffered, "most", 3 * 60_000)
    with ExitStack() as stack:
        filling = [begin(served, 90_000, 60_000 + LARGE_BODY) for _ in range(3)]
        for one in filling:
            stack.callback(one.close)
        eventually(lambda: bodies.buffered.total == 3 * 60_000, "the room is full")
        answer = served.complete("a" * 50_000)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "too many large requests" in answer.json["error"]["message"]
        assert served.complete("a", max_tokens=2).status == 200
    eventually(lambda: bodies.buffered.total == 0, "the room is there again")
    assert served.complete("a" * 50_000).status == 400


def test_a_body_that_nobody_asked_for_is_forgotten(
    served: ScriptedSite, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sanic.Request, "receive_body", lambda request: pytest.fail("it was kept"))
    with caplog.at_level(logging.INFO):
        assert served.ask("GET", "/version", b"x" * LIMIT).status == 200
        assert served.ask("POST", "/nothing", b"x" * LIMIT).status == 404
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


def test_large_bodies_are_read_in_a_thread(served: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def watched(body: bytes) -> Any:
        threads.append(threading.get_ident())
        return parse_body(body)

    monkeypatch.setattr(request_body, "parse_body", watched)
    for size in (10, LARGE_BODY):
        assert served.ask("POST", "/detokenize", {"tokens": [1], "model": "x" * size}).status == 404
    assert threads[0] == served.thread.ident != threads[1]


@pytest.mark.parametrize("count", [5, 1000])
def test_lists_of_ids_are_the_same_however_long(pair: ScriptedSite, count: int) -> None:
    prompt = ("a é 😀 " * count)[: 4 * count]
    answer = pair.ask("POST", "/tokenize", {"prompt": prompt, "return_token_strs": True})
    ids = pair.tokenizer.encode(prompt, True)
    assert answer.json == {
        "count": len(ids),
        "max_model_len": 512,
        "tokens": ids,
        "token_strs": [pair.tokenizer.backend.id_to_token(one) for one in ids],
    }
    if len(ids) <= 1024:
        assert pair.ask("POST", "/detokenize", {"tokens": ids}).json == {"prompt": prompt}


def test_more_ids_than_two_contexts_are_no_text(pair: ScriptedSite) -> None:
    assert pair.ask("POST", "/detokenize", {"tokens": [40] * 1024}).status == 200
    answer = pair.ask("POST", "/detokenize", {"tokens": [40] * 1025})
    assert (answer.status, answer.json["error"]["message"]) == (400, "tokens may hold at most 1024 items")


def test_messages_are_counted_before_they_are_read(bare: ScriptedSite) -> None:
    bare.worker()
    messages = [{"role": "user", "content": ""}] * 8193
    answer = bare.ask("POST", "/v1/chat/completions", {"messages": messages})
    assert (answer.status, answer.json["error"]["message"]) == (400, "messages may hold at most 8192 items")


def test_a_text_within_the_body_is_bounded_as_the_body_is(bare: ScriptedSite) -> None:
    """JSON within a string is parsed separately."""
    bare.worker()
    wide = "[" + "[]," * 200_000 + "[]]"
    call = {"type": "function", "function": {"name": "f", "arguments": f'{{"a": {wide}}}'}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    answer = bare.ask("POST", "/v1/chat/completions", {"messages": messages})
    assert answer.status == 400 and "more than 131072 objects" in answer.json["error"]["message"]
    answer = bare.complete(structured_outputs={"json": wide})
    assert answer.status == 400 and "at most 131072 characters" in answer.json["error"]["message"]
    assert json.loads(wide)
