# SPDX-License-Identifier: Apache-2.0
"""Traces of a running launch, one prefill and one decode worker, at a collector that the test runs."""

import json
from collections.abc import Iterator

import pytest
from disturbed import MODEL, options
from otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from served import Reply, Served, launched, wait_for

PROMPT = [20 + 13 * number % 240 for number in range(600)]
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PAIR = {"proxy", "prefill:0", "decode:0"}
# Traces in a row that may lack the spans of a worker, which were not told in time.
MOST_INCOMPLETE = 3


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as made:
        yield made


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, receiver: OtlpReceiver) -> Iterator[Served]:
    """A launch of its own: no other test wants its requests exported. It is ready after about 8 s of two cores."""
    folder = tmp_path_factory.mktemp("traced")
    (folder / "headers").write_text("api-key: s3cret-of-the-collector\n")
    (folder / "headers").chmod(0o600)
    export = ("--otlp-traces-endpoint", receiver.url, "--otlp-headers", str(folder / "headers"))
    logs = ("--log-format", "json", "--log-level", "debug")
    with launched(folder, "--share-devices", *options(folder), *export, *logs) as served:
        yield served
        end_beside_a_collector_that_hangs(served, receiver)


def end_beside_a_collector_that_hangs(served: Served, receiver: OtlpReceiver) -> None:
    """Check that it does not hold up the end of the launch, which the tests share."""
    receiver.answering.clear()
    receiver.asked.clear()
    assert ask(served, f"00-{'d' * 32}-{SPAN}-01").status == 200
    assert receiver.asked.wait(60) and served.metric('pontil_spans_dropped_total{reason="queue"}') == 0
    assert ask(served, f"00-{'e' * 32}-{SPAN}-01").status == 200
    assert served.stop() == 0


def ask(served: Served, parent: str, **more: object) -> Reply:
    """Ask for an answer whose prompt no other request has cached."""
    body = {
        "model": MODEL, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "cache_salt": parent,
        **more,
    }  # fmt: skip
    return served.request("POST", "/v1/completions", body, {"traceparent": parent})


def collected(receiver: OtlpReceiver, trace_id: str) -> tuple[ReceivedSpan, list[ReceivedSpan]]:
    """Wait for a trace, which comes as a whole; return its server span and the others."""
    spans = wait_for(lambda: receiver.of_trace(trace_id), 60, "the trace")
    (root,) = (span for span in spans if span.kind == "server")
    return root, [span for span in spans if span is not root]


def of_both_workers(traced: Served, receiver: OtlpReceiver) -> tuple[str, Reply, ReceivedSpan, list[ReceivedSpan]]:
    """Ask until both workers have told their times within the second for which an export waits, which is short on a
    crowded machine: few traces may lack them. Return the trace, its answer, its server span and the others."""
    for number in range(MOST_INCOMPLETE + 1):
        trace_id = f"{number + 1}{TRACE[1:]}"
        reply = ask(traced, f"00-{trace_id}-{SPAN}-01")
        assert reply.status == 200
        root, others = collected(receiver, trace_id)
        if {span.process for span in (root, *others)} == PAIR:
            return trace_id, reply, root, others
    raise AssertionError(f"{MOST_INCOMPLETE + 1} traces in a row lack spans of a worker")


def check_tree(root: ReceivedSpan, others: list[ReceivedSpan]) -> None:
    by_id = {span.span_id: span for span in (root, *others)}
    assert len(by_id) == len(others) + 1
    for span in others:
        parent = by_id[span.parent_id]
        assert parent.begin <= span.begin <= span.end <= parent.end, (span, parent)
        assert (parent.name == "attempt") == (span.process != "proxy")


def test_one_trace_joins_the_client_the_proxy_and_both_workers(traced: Served, receiver: OtlpReceiver) -> None:
    trace_id, reply, root, others = of_both_workers(traced, receiver)
    named, usage = str(reply.header("traceparent")), reply.json()["usage"]
    assert (root.parent_id, root.name) == (SPAN, "POST /v1/completions") and named == f"00-{trace_id}-{root.span_id}-01"
    check_tree(root, others)
    of = {name: [span for span in others if span.name == name] for name in {span.name for span in others}}
    assert {"receive", "queue", "attempt", "write", "compute", "pull", "handoff", "decode"} <= set(of)
    assert {span.process for span in of["compute"]} == {"prefill:0"} and len(of["compute"]) > 1
    assert {span.process for span in of["pull"]} == {span.process for span in of["decode"]} == {"decode:0"}
    assert sum(span.attributes["pontil.tokens"] for span in of["compute"]) == usage["prompt_tokens"] == len(PROMPT)
    assert root.attributes["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"]
    assert root.attributes["gen_ai.usage.completion_tokens"] == usage["completion_tokens"] == 8
    assert root.attributes["gen_ai.response.finish_reasons"] == ["length"] and not root.is_error
    first, whole = (root.attributes[f"gen_ai.latency.{name}"] for name in ("time_to_first_token", "e2e"))
    assert 0 < first < whole <= (root.end - root.begin) / 1e9
    assert receiver.headers["api-key"] == "s3cret-of-the-collector"


def test_log_lines_of_workers_name_the_trace(traced: Served) -> None:
    trace_id = "b" * 32
    assert ask(traced, f"00-{trace_id}-{SPAN}-00").status == 200

    def processes() -> set[str]:
        lines = [json.loads(line) for line in traced.output.read_text().splitlines() if line.startswith("{")]
        return {line["process"] for line in lines if line.get("trace_id") == trace_id}

    wait_for(lambda: processes() >= PAIR, 30, "lines of every process")
    assert "s3cret" not in traced.output.read_text()


def killed_in_mid_stream(
    traced: Served, receiver: OtlpReceiver, trace_id: str
) -> tuple[ReceivedSpan, list[ReceivedSpan]] | None:
    """Kill the decode worker under a stream; return its trace, or None where the answer had ended before."""
    reply = ask(traced, f"00-{trace_id}-{SPAN}-01", stream=True, max_tokens=200)
    events = reply.events()
    for _ in range(3):
        next(events)
    traced.kill("decode:0")
    assert list(events)[-1] == "[DONE]"
    root, others = collected(receiver, trace_id)
    return (root, others) if root.attributes["pontil.attempts"] > 1 else None


# By default tests/system/test_waterfall.py has the same of the timeline that spans are made of.
@pytest.mark.long
def test_a_killed_worker_shows_as_two_attempts(traced: Served, receiver: OtlpReceiver) -> None:
    tries = (killed_in_mid_stream(traced, receiver, f"c{number:031x}") for number in range(4))
    root, others = next(found for found in tries if found is not None)
    check_tree(root, others)
    first, second = sorted((span for span in others if span.name == "attempt"), key=lambda span: span.begin)
    assert first.is_error and not second.is_error and not root.is_error and first.end <= second.begin
    (failover,) = (event for event in first.events if event.name == "failover")
    assert "decode:0" in failover.attributes["pontil.reason"] and root.attributes["pontil.attempts"] == 2
    assert root.attributes["gen_ai.usage.completion_tokens"] == 200
    # The other tests have a pair again.
    traced.living("decode:0")
