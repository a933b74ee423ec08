# SPDX-License-Identifier: Apache-2.0
"""Faults: a status before the first byte, one error event after it, and no work continues for a disconnected client."""

import gc
import http.client
import json
import socket
import struct
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_site import ScriptedSite
from scripted_worker import DEADLINE, ScriptedWorker, eventually, silent

from pontil.runtime.proxy.requests.answer import Mailbox
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.wire.messages import Failed, Message, Submit

# Their events are several times what the buffers of a narrow connection hold.
TOKENS = 5_000


def endless(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    """Send one token a frame until the budget, which tests make large."""
    for index in range(submit.sampling["max_tokens"]):
        yield worker.tokens(submit, index, [40])


def torrent(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    for index in range(0, submit.sampling["max_tokens"], 2000):
        yield worker.tokens(submit, index, [40] * 2000)


def narrow(site: ScriptedSite) -> http.client.HTTPConnection:
    """Connect with small buffers, which fill long before others."""
    site.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    connection = site.connect()
    connection.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    return connection


def opened(
    site: ScriptedSite, connection: http.client.HTTPConnection | None = None, **fields: object
) -> http.client.HTTPResponse:
    """Open a stream and wait for its head."""
    connection = connection or site.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "stream": True} | fields))
    return connection.getresponse()


def hang_up(response: http.client.HTTPResponse) -> None:
    """Disconnect at once, as a killed client does."""
    assert response.fp is not None
    raw: socket.socket = response.fp.raw._sock  # type: ignore[attr-defined]
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    response.close()


@pytest.mark.parametrize("stream", [False, True])
def test_without_workers_it_is_503_at_once(bare: ScriptedSite, stream: bool) -> None:
    answer = bare.complete(stream=stream)
    assert answer.status == 503 and "no worker" in answer.json["error"]["message"]
    assert answer.headers["retry-after"] == "1" and answer.json["error"]["type"] == "server_error"
    assert bare.ask("GET", "/ready").status == 503 and bare.ask("GET", "/health").status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_that_dies_before_the_first_byte_is_503(bare: ScriptedSite, stream: bool) -> None:
    worker = bare.worker(script=silent)
    connection = bare.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "stream": stream}))
    worker.submits.get(timeout=DEADLINE)
    worker.fall_silent(bare.proxy.registry)
    response = connection.getresponse()
    assert response.status == 503
    assert "mixed:0 went silent" in json.loads(response.read())["error"]["message"]
    eventually(lambda: bare.proxy.idle)


def test_a_worker_that_dies_after_the_first_byte_is_one_error_event(bare: ScriptedSite) -> None:  # F4
    worker = bare.worker(script=silent)
    connection = bare.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "stream": True}))
    submit = worker.submits.get(timeout=DEADLINE)
    worker.say(worker.tokens(submit, 0, [40]))
    response = connection.getresponse()
    assert response.status == 200
    worker.fall_silent(bare.proxy.registry)
    *tokens, last, nothing = response.read().decode().split("\n\n")
    assert nothing == "" and tokens and "choices" in json.loads(tokens[0][6:])
    error = json.loads(last[6:])["error"]
    assert error["type"] == "server_error" and "went silent" in error["message"]


def test_the_table_is_faster_than_silence(bare: ScriptedSite) -> None:
    worker = bare.worker(script=silent)
    row = {"name": "mixed:0", "role": "mixed", "pid": worker.pid, "state": "ready", "device": "cpu"}
    bare.loop.call_soon_threadsafe(bare.proxy.take_table, [row])
    connection = bare.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "a"}))
    worker.submits.get(timeout=DEADLINE)
    bare.loop.call_soon_threadsafe(bare.proxy.take_table, [row | {"state": "exited"}])
    response = connection.getresponse()
    assert response.status == 503 and "mixed:0 died" in json.loads(response.read())["error"]["message"]


def test_one_of_two_prompts_failing_ends_both(bare: ScriptedSite) -> None:
    worker = bare.worker(script=silent)
    connection = bare.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": ["a", "b"]}))
    worker.submits.get(timeout=DEADLINE)
    second = worker.submits.get(timeout=DEADLINE)
    worker.say(Failed(worker.incarnation, worker.proxy, second.request_id, 0, "too long for the pool", 400))
    response = connection.getresponse()
    assert response.status == 400 and json.loads(response.read())["error"]["message"] == "too long for the pool"
    cancelled = {worker.cancels.get(timeout=DEADLINE).request_id for _ in range(2)}
    assert len(cancelled) == 2 and bare.proxy.idle


def test_a_client_that_leaves_a_stream_is_noticed(bare: ScriptedSite) -> None:  # F7
    worker = bare.worker(script=endless, pace=0.005)
    response = opened(bare, max_tokens=500)
    response.readline()
    left = time.monotonic()
    hang_up(response)
    worker.cancels.get(timeout=DEADLINE)
    assert time.monotonic() - left < DEADLINE and bare.proxy.idle
    eventually(lambda: bare.value("pontil_request_success_total", finished_reason="abort") == 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_it_waits_is_noticed(
    bare: ScriptedSite, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    worker = bare.worker(script=silent)
    connection = bare.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": ["a", "b"], "stream": stream}))
    worker.submits.get(timeout=DEADLINE)
    connection.close()
    worker.cancels.get(timeout=DEADLINE)
    worker.cancels.get(timeout=DEADLINE)
    eventually(lambda: bare.proxy.idle)
    assert bare.complete(max_tokens=0).status == 400, "the server has come to the next request"
    assert not [record for record in caplog.records if record.levelname == "ERROR"], "a client may leave"


def test_a_slow_reader_slows_only_itself(bare: ScriptedSite) -> None:  # F7
    worker = bare.worker(script=endless, max_model_len=1 << 20, num_blocks=1 << 16)
    slow = opened(bare, narrow(bare), max_tokens=TOKENS, ignore_eos=True, return_token_ids=True)
    assert bare.complete(max_tokens=50).status == 200
    eventually(lambda: bare.value("pontil_request_success_total", finished_reason="length") == 2)
    assert not worker.active, "the worker never waited for the reader"
    events = [line for line in slow.read().decode().split("\n\n") if line.startswith("data: {")]
    ids = [number for event in events for choice in json.loads(event[6:])["choices"] for number in choice["token_ids"]]
    assert ids == [40] * TOKENS
    assert len(events) < TOKENS, "what waited was merged"


def test_a_reader_that_never_reads_is_cut_off(bare: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:  # F7
    monkeypatch.setattr("pontil.http.server.timed_protocol.READER_PATIENCE", 0.05)
    # At this pace the output would take minutes.
    worker = bare.worker(script=torrent, pace=0.005, max_model_len=1 << 26, num_blocks=1 << 22)
    connection = narrow(bare)
    body = {"prompt": "a", "stream": True, "max_tokens": 60_000_000, "return_token_ids": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    worker.cancels.get(timeout=DEADLINE)
    eventually(lambda: bare.proxy.idle)
    connection.close()


def test_keep_alive_comments_come_only_after_the_first_token(
    bare: ScriptedSite, monkeypatch: pytest.MonkeyPatch
) -> None:  # F4
    monkeypatch.setattr("pontil.http.stream.reply.KEEP_ALIVE_AFTER", 0.01)
    worker = bare.worker(script=silent)
    connection = bare.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "stream": True}))
    submit = worker.submits.get(timeout=DEADLINE)
    worker.say(worker.tokens(submit, 0, [40]))
    response = connection.getresponse()
    assert response.readline().startswith(b"data: {") and response.readline() == b"\n"
    assert response.readline() == b": keep-alive\n"
    worker.say(worker.tokens(submit, 1, [41], finish_reason="stop", generated_tokens=2))
    assert response.read().endswith(b"data: [DONE]\n\n")


def test_a_bug_of_ours_is_500_without_a_trace(bare: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise KeyError("secret detail")

    monkeypatch.setattr(bare.proxy, "topology", broken)
    answer = bare.ask("GET", "/admin/topology")
    assert answer.status == 500 and answer.json["error"]["type"] == "server_error"
    assert b"secret" not in answer.body and b"Traceback" not in answer.body


def test_draining_lets_nothing_in_and_finishes_what_runs(bare: ScriptedSite) -> None:
    worker = bare.worker(script=silent)
    connection = bare.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "a"}))
    submit = worker.submits.get(timeout=DEADLINE)
    bare.proxy.drain()
    answer = bare.complete()
    assert answer.status == 503 and "shutting down" in answer.json["error"]["message"]
    worker.say(worker.tokens(submit, 0, [40], finish_reason="stop", generated_tokens=1))
    assert connection.getresponse().status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_reply_held_is_freed_without_the_garbage_collector(pair: ScriptedSite, stream: bool) -> None:
    """Prompts are long, and young garbage is looked for seldom."""
    make, kept = pair.proxy.in_flight.open, list[weakref.ref[Mailbox]]()

    def noted(*asked: Any) -> Request:
        request = make(*asked)
        kept.append(weakref.ref(request.mailbox))
        return request

    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pair.proxy.in_flight, "open", noted)
            assert pair.complete(stream=stream).status == 200
        (mailbox,) = kept
        eventually(lambda: mailbox() is None, "the end of the mailbox")
    finally:
        gc.enable()
