# SPDX-License-Identifier: Apache-2.0
"""Traces over HTTP, with scripted workers: headers in and out, and the spans of good and bad requests."""

import json
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import pytest
from otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from scripted_site import HttpAnswer, ScriptedSite, site
from scripted_speech import demo
from scripted_worker import ScriptedWorker, eventually, proper

from pontil.runtime.foundation.trace_context import read_context
from pontil.runtime.timeline.recorder import MOST_OF_ONE
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Failed, Message, Submit

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as made:
        yield made


@pytest.fixture(scope="module")
def traced(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, receiver: OtlpReceiver
) -> Iterator[ScriptedSite]:
    """A pair behind a proxy that exports its traces."""
    folder = tmp_path_factory.mktemp("site")
    with site(folder, tokenizer, otlp_traces_endpoint=f"{receiver.url}/v1/traces") as made:
        made.pair()
        yield made


def post(made: ScriptedSite, body: object, path: str = "/v1/completions", **headers: str) -> HttpAnswer:
    return made.ask("POST", path, body, headers)


def asked(prompt: object = "hi", **fields: object) -> dict[str, object]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 4, **fields}


def server_span(receiver: OtlpReceiver, answer: HttpAnswer | HTTPResponse) -> ReceivedSpan:
    """Wait for the span that the response names."""
    context = read_context([answer.headers["traceparent"]])
    assert context is not None

    def found() -> list[ReceivedSpan]:
        return [span for span in receiver.of_trace(context.trace_id) if span.span_id == context.span_id]

    eventually(lambda: bool(found()), "the server span")
    return found()[0]


def test_the_clients_trace_goes_on_in_the_response_and_to_the_collector(
    traced: ScriptedSite, receiver: OtlpReceiver
) -> None:
    answer = post(traced, asked(), traceparent=PARENT, tracestate="vendor=1")
    assert answer.headers["traceparent"][:36] == PARENT[:36] and answer.headers["traceparent"] != PARENT
    span = server_span(receiver, answer)
    assert (span.trace_id, span.parent_id, span.state, span.kind) == (TRACE, SPAN, "vendor=1", "server")
    assert span.attributes["gen_ai.request.id"] == answer.headers["x-request-id"]
    row = traced.ask("GET", f"/admin/requests/{answer.headers['x-request-id']}").json
    assert row["trace_id"] == TRACE


@pytest.mark.parametrize("stream", [False, True])
def test_attributes_are_those_of_the_reply(traced: ScriptedSite, receiver: OtlpReceiver, stream: bool) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = post(traced, asked(temperature=0.5, **options))
    usage = answer.events[-2]["usage"] if stream else answer.json["usage"]
    span = server_span(receiver, answer)
    for name in ("prompt_tokens", "completion_tokens"):
        assert span.attributes[f"gen_ai.usage.{name}"] == usage[name]
    assert span.attributes["gen_ai.request.max_tokens"] == 4 and span.attributes["gen_ai.request.temperature"] == 0.5
    assert span.attributes["http.response.status_code"] == 200 and span.name == "POST /v1/completions"
    spans = receiver.of_trace(span.trace_id)
    assert {"queue", "attempt"} <= {one.name for one in spans if one.parent_id == span.span_id}
    assert all(span.begin <= one.begin <= one.end <= span.end for one in spans), spans


def test_several_prompts_are_one_trace(traced: ScriptedSite, receiver: OtlpReceiver) -> None:
    answer = post(traced, asked(["hi", "hello"]))
    span = server_span(receiver, answer)
    assert span.attributes["gen_ai.usage.prompt_tokens"] == answer.json["usage"]["prompt_tokens"]
    assert len([one for one in receiver.of_trace(span.trace_id) if one.name == "attempt"]) == 2


def test_the_parts_of_many_prompts_are_bounded_and_their_usage_is_whole(
    traced: ScriptedSite, receiver: OtlpReceiver
) -> None:
    answer = post(traced, asked(["hi"] * (MOST_OF_ONE + 4)))
    span = server_span(receiver, answer)
    for name in ("prompt_tokens", "completion_tokens"):
        assert span.attributes[f"gen_ai.usage.{name}"] == answer.json["usage"][name]
    names = [one.name for one in receiver.of_trace(span.trace_id)]
    assert names.count("attempt") == MOST_OF_ONE and names.count("receive") == names.count("write") == 1


def test_requests_of_one_connection_have_traces_of_their_own(traced: ScriptedSite) -> None:
    connection, seen = traced.connect(), []
    for _ in range(2):
        connection.request("POST", "/tokenize", b'{"model": "tiny", "prompt": "hi"}')
        response = connection.getresponse()
        response.read()
        seen.append(response.headers["traceparent"][3:35])
    connection.request("GET", "/v1/models")
    assert connection.getresponse().headers["traceparent"] is None
    connection.close()
    assert len(set(seen)) == 2
    assert traced.ask("POST", "/admin/workers/nobody/drain", {}).headers["traceparent"] is None


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (asked(max_tokens=-1), 400), (asked(model="another"), 404)])
def test_a_refused_request_is_no_error_of_the_server(
    traced: ScriptedSite, receiver: OtlpReceiver, body: object, status: int
) -> None:
    answer = post(traced, body)
    span = server_span(receiver, answer)
    assert span.attributes["http.response.status_code"] == status == answer.status and not span.is_error


@pytest.mark.parametrize(
    "header", ["x" * 4000, "00-" + "0" * 32 + f"-{SPAN}-01", PARENT.upper(), "\xff\xfe", f"{PARENT}, {PARENT}", ""]
)
def test_a_hostile_header_begins_a_new_trace(traced: ScriptedSite, header: str) -> None:
    answer = post(traced, asked(), traceparent=header, tracestate=header)
    context = read_context([answer.headers["traceparent"]])
    assert answer.status == 200 and context is not None and context.trace_id != TRACE


def test_a_trace_that_is_not_sampled_is_named_and_not_exported(traced: ScriptedSite, receiver: OtlpReceiver) -> None:
    trace_id = "a" * 32
    answer = post(traced, asked(), traceparent=f"00-{trace_id}-{SPAN}-00")
    assert answer.headers["traceparent"].startswith(f"00-{trace_id}-") and answer.headers["traceparent"][-2:] == "00"
    server_span(receiver, post(traced, asked()))
    assert receiver.of_trace(trace_id) == []


def test_without_a_collector_nothing_is_traced(pair: ScriptedSite) -> None:
    answer = post(pair, asked(), traceparent=PARENT)
    assert answer.status == 200 and answer.headers["traceparent"] is None


def test_a_request_without_a_key_costs_no_trace(tmp_path: Path, tokenizer: Tokenizer) -> None:
    callers = (("alice", "0" * 64),)
    with site(tmp_path, tokenizer, otlp_traces_endpoint="http://127.0.0.1:9/v1/traces", callers=callers) as made:
        answer = post(made, asked(), traceparent=PARENT)
        assert answer.status == 401 and answer.headers["traceparent"] is None


def test_a_worker_that_dies_makes_two_attempts_of_one_trace(
    tmp_path: Path, tokenizer: Tokenizer, receiver: OtlpReceiver
) -> None:
    with site(tmp_path, tokenizer, otlp_traces_endpoint=f"{receiver.url}/v1/traces") as made:
        workers = [made.worker(f"mixed:{number}", script=broken_at_first) for number in range(2)]
        answer = post(made, asked())
        span = server_span(receiver, answer)
    attempts = [one for one in receiver.of_trace(span.trace_id) if one.name == "attempt"]
    assert answer.status == 200 and [one.is_error for one in attempts] == [True, False] and not span.is_error
    (failover,) = attempts[0].events
    assert failover.name == "failover" and failover.attributes["pontil.reason"] == "its KV is lost"
    said = [worker.submits.get(timeout=10).traceparent for worker in workers]
    assert said == [answer.headers["traceparent"]] * 2


def broken_at_first(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    if submit.attempt == 0:
        yield Failed(worker.incarnation, worker.proxy, submit.request_id, 0, "its KV is lost")
    else:
        yield from proper(worker, submit)


def test_a_client_that_leaves_is_no_error(tmp_path: Path, tokenizer: Tokenizer, receiver: OtlpReceiver) -> None:
    with site(tmp_path, tokenizer, otlp_traces_endpoint=f"{receiver.url}/v1/traces") as made:
        made.worker(text="Hello " * 60, pace=0.02)
        connection = made.connect()
        connection.request("POST", "/v1/completions", json.dumps(asked(max_tokens=200, stream=True)))
        response = connection.getresponse()
        response.read(10)
        response.close()
        connection.close()
        span = server_span(receiver, response)
    assert span.attributes["pontil.state"] == "cancelled" and not span.is_error
    assert "gen_ai.latency.time_to_first_token" in span.attributes


def test_the_stages_of_a_spoken_answer_are_one_trace(
    tmp_path: Path, tokenizer: Tokenizer, receiver: OtlpReceiver
) -> None:
    config = {"graph": "speech-demo", "otlp_traces_endpoint": f"{receiver.url}/v1/traces"}
    with site(tmp_path, tokenizer, **config) as made:
        demo(made)
        answer = made.chat(modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"})
        span = server_span(receiver, answer)
    usage = answer.json["usage"]
    for name in ("prompt_tokens", "completion_tokens"):
        assert span.attributes[f"gen_ai.usage.{name}"] == usage[name] > 0
    assert span.attributes["gen_ai.operation.name"] == "chat"
    attempts = [one for one in receiver.of_trace(span.trace_id) if one.name == "attempt"]
    assert {one.attributes["pontil.stage"] for one in attempts} == {"llm", "speaker"}


def test_what_is_left_is_exported_when_the_proxy_ends(
    tmp_path: Path, tokenizer: Tokenizer, receiver: OtlpReceiver
) -> None:
    with site(tmp_path, tokenizer, otlp_traces_endpoint=f"{receiver.url}/v1/traces") as made:
        made.pair()
        answer = post(made, asked())
    assert server_span(receiver, answer).attributes["pontil.state"] == "complete"
