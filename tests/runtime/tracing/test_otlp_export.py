# SPDX-License-Identifier: Apache-2.0
"""Spans on the wire of a real collector, and a collector that is down, hangs or refuses."""

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from prometheus_client import CollectorRegistry
from scripted_worker import eventually
from traces import EVENTS, PARENT, RECEIVED_AT, SPANS, complete, timeline

from pontil.runtime.proxy.metrics.all_series import SpanMetrics
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.tracing import otlp_export
from pontil.runtime.tracing.otlp_export import Collector, OtlpExport
from pontil.runtime.tracing.tracer import Tracer

# Nothing may hold up the end of a proxy for longer, on any machine; a collector that hangs has ten times as long.
SHORT_SECONDS = 60.0


class Exporting:
    """An export on its way to a collector, with the tracer before it."""

    def __init__(self, endpoint: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.registry, self.failures = CollectorRegistry(), ThreadFailures()
        collector = Collector(endpoint, headers, "proxy", "1.2")
        self.export = OtlpExport(collector, SpanMetrics(self.registry), self.failures)
        self.tracer = Tracer(1.0, self.export)

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"pontil_spans_{name}_total", labels) or 0.0


@contextmanager
def exporting(endpoint: str, headers: tuple[tuple[str, str], ...] = ()) -> Iterator[Exporting]:
    made = Exporting(endpoint, headers)
    made.export.start()
    try:
        yield made
    finally:
        made.export.close()
    assert made.failures.counts() == {}


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as made:
        yield made


def tree(receiver: OtlpReceiver, **asked: object) -> list[ReceivedSpan]:
    with exporting(f"{receiver.url}/v1/traces") as made:
        complete(made.tracer, **asked)  # type: ignore[arg-type]
    return receiver.spans


def test_one_trace_has_the_spans_of_all_processes(receiver: OtlpReceiver) -> None:
    spans = tree(receiver, parents=(PARENT,), states=("vendor=x",))
    root = next(span for span in spans if span.kind == "server")
    assert (root.name, root.trace_id, root.parent_id) == ("POST /v1/completions", PARENT[3:35], PARENT[36:52])
    assert {span.trace_id for span in spans} == {root.trace_id} and {span.state for span in spans} == {"vendor=x"}
    assert len({span.span_id for span in spans}) == len(spans) == 1 + len(SPANS)
    assert Counter(span.process for span in spans) == Counter(["proxy", *(span.process for span in SPANS)])
    assert {span.resource["service.name"] for span in spans} == {"pontil"}
    by_id = {span.span_id: span for span in spans}
    for span in spans:
        if span is root:
            continue
        parent = by_id[span.parent_id]
        assert (parent.name == "attempt") == (span.process != "proxy") and (parent is root) == (span.process == "proxy")
        assert parent.begin <= span.begin <= span.end <= parent.end
        assert parent is root or parent.attributes["pontil.attempt"] == span.attributes["pontil.attempt"]


def test_times_are_since_1970(receiver: OtlpReceiver) -> None:
    by_name = {(span.process, span.name): span for span in tree(receiver)}
    pull = by_name["decode:0", "pull"]
    assert abs(pull.begin - int((RECEIVED_AT + 0.1) * 1e9)) < 1000 and pull.attributes["pontil.bytes"] == 4096
    decode = by_name["mixed:0", "decode"]
    assert abs(decode.end - int((RECEIVED_AT + 1.0) * 1e9)) < 1000


def test_the_server_span_says_what_was_asked_for_and_used(receiver: OtlpReceiver) -> None:
    root = next(span for span in tree(receiver) if span.kind == "server")
    expected = {
        "http.request.method": "POST", "http.route": "/v1/completions", "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion", "gen_ai.request.model": "tiny", "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.5, "gen_ai.usage.prompt_tokens": 5, "gen_ai.usage.completion_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 2, "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.latency.time_to_first_token": 0.3, "gen_ai.latency.e2e": 1.0, "pontil.attempts": 2,
    }  # fmt: skip
    assert {name: root.attributes[name] for name in expected} == expected
    assert root.attributes["gen_ai.latency.time_in_queue"] == pytest.approx(0.03 + 0.01)
    assert root.parent_id == "" and not root.is_error and [event.name for event in root.events] == ["first_token"]


def test_failovers_and_preemptions_are_events_of_their_attempt(receiver: OtlpReceiver) -> None:
    first, second = sorted((span for span in tree(receiver) if span.name == "attempt"), key=lambda span: span.begin)
    assert [event.name for event in first.events] == ["failover"] and first.is_error
    assert first.events[0].attributes["pontil.reason"] == EVENTS[1].reason
    assert [event.name for event in second.events] == ["preempted"] and not second.is_error
    assert second.events[0].attributes["pontil.process"] == "mixed:0"


@pytest.mark.parametrize(
    ("status", "state", "is_error"),
    [(200, "failed", True), (200, "cancelled", False), (400, "complete", False), (503, "complete", True)],
)
def test_errors_of_the_server_are_its_status(receiver: OtlpReceiver, status: int, state: str, is_error: bool) -> None:
    root = next(span for span in tree(receiver, status=status, done=timeline(state=state)) if span.kind == "server")
    assert root.is_error is is_error and ("error.type" in root.attributes) is is_error
    assert root.attributes["pontil.state"] == state


def test_headers_and_the_operators_names_of_the_service_are_sent(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.instance.id=x")
    with exporting(f"{receiver.url}/otlp/v1/traces", (("api-key", "s3cret"),)) as made:
        complete(made.tracer)
    assert receiver.headers["api-key"] == "s3cret" and set(receiver.paths) == {"/otlp/v1/traces"}
    assert {span.resource["deployment.environment.name"] for span in receiver.spans} == {"test"}
    assert {"proxy", "prefill:0"} < {span.process for span in receiver.spans}


def test_many_traces_are_sent_in_batches(receiver: OtlpReceiver) -> None:
    with exporting(f"{receiver.url}/v1/traces") as made:
        for number in range(60):
            complete(made.tracer, f"r-{number}")
        eventually(lambda: made.value("exported") == 60 * (1 + len(SPANS)), "the export")
    assert len({span.trace_id for span in receiver.spans}) == 60 and len(receiver.paths) > 1


def test_a_collector_that_is_down_costs_nothing_but_its_spans(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_export, "EXPORT_SECONDS", 2.0)
    with otlp_receiver() as receiver:
        url = receiver.url
    with caplog.at_level(logging.INFO), exporting(f"{url}/v1/traces") as made:
        complete(made.tracer)
        eventually(lambda: made.value("dropped", reason="collector") > 0, "the drop")
        complete(made.tracer, "r-2")
        begun = time.monotonic()
        made.export.close()
        assert time.monotonic() - begun < SHORT_SECONDS
    said = [record.getMessage() for record in caplog.records if record.name == "pontil.tracing"]
    assert said[0].startswith(f"traces do not reach {url}/v1/traces, and are dropped until they do: ")
    assert "refused" in said[0] and not [record for record in caplog.records if "opentelemetry" in record.name]


def test_a_collector_that_refuses_is_named_once_and_again_when_it_takes_traces(
    receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 400
    with caplog.at_level(logging.INFO), exporting(f"{receiver.url}/v1/traces") as made:
        complete(made.tracer)
        eventually(lambda: made.value("dropped", reason="collector") == 1 + len(SPANS), "the drop")
        complete(made.tracer)
        eventually(lambda: made.value("dropped", reason="collector") == 2 * (1 + len(SPANS)), "the next drop")
        receiver.status = 200
        complete(made.tracer)
        eventually(lambda: made.value("exported") == 1 + len(SPANS), "the export")
    said = [record.getMessage() for record in caplog.records if record.name == "pontil.tracing"]
    assert len(said) == 2 and "400" in said[0] and said[1].endswith("again")


def test_a_collector_that_hangs_holds_up_nothing(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_export, "MOST_TRACES", 3)
    monkeypatch.setattr(otlp_export, "EXPORT_SECONDS", 10 * SHORT_SECONDS)
    receiver.answering.clear()
    with exporting(f"{receiver.url}/v1/traces") as made:
        complete(made.tracer)
        assert receiver.asked.wait(10)
        for number in range(5):
            complete(made.tracer, f"r-{number}")
        assert made.value("dropped", reason="queue") == 2 * (1 + len(SPANS))
        begun = time.monotonic()
        made.export.close()
        assert time.monotonic() - begun < SHORT_SECONDS
        assert made.value("dropped", reason="collector") >= 3 * (1 + len(SPANS))


def test_one_that_never_started_can_be_closed() -> None:
    made = Exporting("http://127.0.0.1:9/v1/traces")
    complete(made.tracer)
    made.export.close()
    assert made.value("dropped", reason="collector") == 1 + len(SPANS)


def test_a_trace_that_cannot_be_made_is_counted_and_takes_no_other_with_it(receiver: OtlpReceiver) -> None:
    made = Exporting(f"{receiver.url}/v1/traces")
    # All wait together, so that they are one batch.
    complete(made.tracer, "r-1")
    complete(made.tracer, "r-2").context = None  # type: ignore[assignment]
    complete(made.tracer, "r-3")
    made.export.start()
    made.export.close()
    assert made.value("dropped", reason="fault") == 1 + len(SPANS) and made.failures.counts() == {"spans": 1}
    assert made.value("exported") == len(receiver.spans) == 2 * (1 + len(SPANS)) and len(receiver.paths) == 1


def test_a_batch_that_cannot_be_sent_is_counted(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Exporting(f"{receiver.url}/v1/traces")
    monkeypatch.setattr(made.export.exporter, "export", None)
    complete(made.tracer)
    made.export.start()
    eventually(lambda: made.value("dropped", reason="fault") == 1 + len(SPANS), "the fault")
    monkeypatch.undo()
    complete(made.tracer)
    eventually(lambda: made.value("exported") == 1 + len(SPANS), "the next trace")
    made.export.close()
    assert made.failures.counts() == {"spans": 1}
