# SPDX-License-Identifier: Apache-2.0
"""/metrics agrees with the responses in both formats, and docs/operate/metrics.md agrees with it."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from recorded_profile import small_profile
from scripted_site import HttpAnswer, ScriptedSite, site
from scripted_worker import ScriptedWorker, eventually, proper, silent

from pontil.http.routes.status import takes_openmetrics
from pontil.runtime.proxy.balance.forecast import Forecast
from pontil.runtime.proxy.metrics.heartbeats import STREAM_GAUGES, TIER_COUNTERS, TIER_GAUGES
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Message, Submit, Tokens

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "metrics.md"
ROW = re.compile(r"^\| `((?:pontil|vllm:)\w*)(?:\{([\w,]+)\})?` \| (\w+) \| (.+) \|$", re.MULTILINE)
OPENMETRICS = {"accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"}
# Histograms observed once per complete response.
TIMES = (
    "time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
    "request_dispatch_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds",
    "request_transfer_time_seconds", "request_time_per_output_token_seconds", "request_prompt_tokens",
    "request_generation_tokens",
)  # fmt: skip


@pytest.fixture
def fresh(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer) as made:
        yield made


def pulling(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    """Respond as a worker that found four prompt tokens in its cache, did not queue and pulled some blocks. One worker
    reports all of it, since the order of two workers' frames is undefined."""
    for frame in proper(worker, submit):
        assert isinstance(frame, Tokens)
        about: dict[str, Any] = {"cached_tokens": 4, "pulled_bytes": 4096, "pulled_seconds": 0.0, "queue_seconds": 0.0}
        yield replace(frame, **about) if frame.index == 0 else frame


def series(made: ScriptedSite, name: str, **labels: str) -> float:
    return made.value(f"pontil_{name}", **labels)


@pytest.mark.parametrize("stream", [False, True])
def test_one_request_is_counted_as_it_is_billed(fresh: ScriptedSite, stream: bool) -> None:  # B6
    fresh.worker(script=pulling)
    answer = fresh.complete("hello there", max_tokens=9, ignore_eos=True, stream=stream,
                            **({"stream_options": {"include_usage": True}} if stream else {}))  # fmt: skip
    usage = answer.events[-2]["usage"] if stream else answer.json["usage"]
    eventually(lambda: series(fresh, "request_success_total", finished_reason="length") == 1)
    assert series(fresh, "prompt_tokens_total") == usage["prompt_tokens"] > 0
    assert series(fresh, "generation_tokens_total") == usage["completion_tokens"] == 9
    assert series(fresh, "prompt_tokens_cached_total") == usage["prompt_tokens_details"]["cached_tokens"] == 4
    assert series(fresh, "request_prompt_tokens_sum") == usage["prompt_tokens"]
    assert series(fresh, "request_generation_tokens_sum") == usage["completion_tokens"]
    assert {name: series(fresh, f"{name}_count") for name in TIMES} == dict.fromkeys(TIMES, 1.0)
    assert series(fresh, "inter_token_latency_seconds_count") == 8
    whole, first = series(fresh, "e2e_request_latency_seconds_sum"), series(fresh, "time_to_first_token_seconds_sum")
    decode = series(fresh, "request_decode_time_seconds_sum")
    assert whole == pytest.approx(first + decode) == series(fresh, "request_inference_time_seconds_sum")
    assert series(fresh, "request_time_per_output_token_seconds_sum") == pytest.approx(decode / 8)
    assert series(fresh, "num_requests_running") == series(fresh, "num_requests_waiting") == 0


def test_ends_have_vllms_words(fresh: ScriptedSite) -> None:
    fresh.worker(script=silent)
    connection = fresh.connect()
    connection.request("POST", "/v1/completions", '{"prompt": "hi", "stream": true}')
    eventually(lambda: series(fresh, "num_requests_waiting") == 1)
    connection.close()
    eventually(lambda: series(fresh, "request_success_total", finished_reason="abort") == 1)
    assert series(fresh, "e2e_request_latency_seconds_count") == series(fresh, "prompt_tokens_total") == 0


def test_what_is_in_flight_is_shown_as_it_goes(fresh: ScriptedSite) -> None:
    worker = fresh.worker(script=silent)
    connection = fresh.connect()
    connection.request("POST", "/v1/completions", '{"prompt": "hi", "max_tokens": 3, "stream": true}')
    submit = worker.submits.get(timeout=60)
    assert (series(fresh, "num_requests_running"), series(fresh, "num_requests_waiting")) == (0, 1)
    worker.say(worker.tokens(submit, 0, [70, 71]))
    eventually(lambda: (series(fresh, "num_requests_running"), series(fresh, "num_requests_waiting")) == (1, 0))
    assert series(fresh, "generation_tokens_total") == 2, "tokens count when they are delivered"
    worker.say(worker.tokens(submit, 2, [72], finish_reason="length", generated_tokens=3))
    assert HttpAnswer(connection.getresponse()).events[-1] == "[DONE]"
    connection.close()
    eventually(lambda: series(fresh, "num_requests_running") == 0)
    assert series(fresh, "generation_tokens_total") == 3


def test_workers_have_gauges_while_they_are_there(fresh: ScriptedSite) -> None:
    prefill, decode = fresh.pair()
    prefill.free_blocks, decode.free_blocks = 48, 64
    prefill.counters = {"stale_messages": 3, "malformed_frames": 1, "handoffs_expired": 2, "preemptions": 5}

    def shown() -> list[float]:
        each = [series(fresh, "worker_kv_cache_usage_perc", worker=one.name) for one in (prefill, decode)]
        return [series(fresh, "kv_cache_usage_perc"), *each]

    eventually(lambda: shown() == [0.125, 0.25, 0.0])
    eventually(lambda: series(fresh, "worker_stale_messages_total") == 3)
    assert series(fresh, "worker_malformed_frames_total") == 1 and series(fresh, "num_preemptions_total") == 5
    assert series(fresh, "handoffs_total", result="expired") == 2
    row = {"name": "decode:0", "role": "decode", "pid": 0, "state": "gone", "device": "cpu", "restarts": 4}
    fresh.proxy.registry.show([row])
    assert series(fresh, "process_restarts_total", process="decode:0") == 4
    fresh.proxy.registry.show(
        [
            row
            | {"rss_bytes": 5, "ranks": [{"rank": 0, "state": "ready", "rss_bytes": 2}, {"rank": 1, "state": "ready"}]},
            row | {"name": "x", "rss_bytes": 7},
        ]
    )
    resident = "process_resident_memory_bytes"
    assert (
        series(fresh, resident, process="decode:0", rank="0") == 2
        and series(fresh, resident, process="x", rank="0") == 7
    )
    assert 'process="decode:0",rank="1"' not in fresh.ask("GET", "/metrics").body.decode()
    text = fresh.ask("GET", "/metrics").body.decode()
    assert 'pontil_info{model_name="tiny",version="1.2.3"} 1.0' in text
    assert 'worker_sequences_running{worker="prefill:0"} 0.0' in text and "worker_sequences_waiting" in text


def test_streams_are_shown_by_worker(fresh: ScriptedSite) -> None:
    prefill, decode = fresh.pair()
    decode.counters = {"stream_items": 7, "stream_bytes": 4096}
    decode.gauges = {"stream_kept_bytes": 512, "stream_items_ahead": 3, "streams_full": 1, "made_up": 9}
    eventually(lambda: series(fresh, "worker_stream_kept_bytes", worker="decode:0") == 512)
    assert series(fresh, "stream_items_total", worker="decode:0") == 7
    assert series(fresh, "stream_bytes_total", worker="decode:0") == 4096
    assert series(fresh, "worker_stream_items_ahead", worker="decode:0") == 3
    text = fresh.ask("GET", "/metrics").body.decode()
    assert "made_up" not in text and 'worker_streams_full{worker="prefill:0"}' not in text
    decode.gauges = {"stream_kept_bytes": 0}
    eventually(lambda: series(fresh, "worker_stream_kept_bytes", worker="decode:0") == 0)
    assert 'streams_full{worker="decode:0"}' not in fresh.ask("GET", "/metrics").body.decode()


def exemplars(text: str) -> dict[str, set[str]]:
    """Return the request ids in each histogram's exemplars."""
    found: dict[str, set[str]] = {}
    for family in parse_openmetrics(text):
        for sample in family.samples:
            if sample.exemplar is not None:
                found.setdefault(family.name, set()).add(sample.exemplar.labels["request_id"])
    return found


def test_openmetrics_names_a_request_beside_each_time(fresh: ScriptedSite) -> None:  # F6
    fresh.worker(script=pulling)
    body = {"prompt": "hi", "max_tokens": 4, "ignore_eos": True}
    assert fresh.ask("POST", "/v1/completions", body, {"x-request-id": "mine"}).status == 200
    answer = fresh.ask("GET", "/metrics", headers=OPENMETRICS)
    assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert answer.body.endswith(b"# EOF\n")
    named = exemplars(answer.body.decode())
    (entry,) = fresh.proxy.ledger.closed
    assert entry.startswith("mine-") and named == {f"pontil_{name}": {entry} for name in TIMES}
    plain = fresh.ask("GET", "/metrics")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8" and b"mine" not in plain.body


def test_a_client_learns_no_names_of_anothers_requests(tmp_path: Path, tokenizer: Tokenizer) -> None:
    keys = {name: f"sk-{name}-0123456789" for name in ("alice", "bob", "admin")}
    digests = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in keys.items()}
    callers = tuple((name, digests[name]) for name in ("alice", "bob"))
    with site(tmp_path, tokenizer, callers=callers, admin=digests["admin"]) as made:
        made.worker()
        shown = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
        body = {"prompt": "hi", "max_tokens": 2}
        for name in ("alice", "bob"):
            asked = shown[name] | {"x-request-id": f"secret-{name}"}
            assert made.ask("POST", "/v1/completions", body, asked).status == 200
        for name in ("alice", "bob"):
            answer = made.ask("GET", "/metrics", headers=shown[name] | OPENMETRICS)
            assert answer.status == 200 and b"secret" not in answer.body
            assert b"pontil_request_success_total" in answer.body
        named = exemplars(made.ask("GET", "/metrics", headers=shown["admin"] | OPENMETRICS).body.decode())
        assert any(one.startswith("secret-") for ids in named.values() for one in ids)


def test_a_name_that_is_too_long_for_an_exemplar_stands_nowhere(fresh: ScriptedSite) -> None:
    fresh.worker()
    for length in (101, 102, 128):
        headers = {"x-request-id": "a" * length}
        assert fresh.ask("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 4}, headers).status == 200
        named = exemplars(fresh.ask("GET", "/metrics", headers=OPENMETRICS).body.decode())
        assert {len(one) for ids in named.values() for one in ids} == {118}
    assert series(fresh, "e2e_request_latency_seconds_count") == 3


@pytest.mark.parametrize(
    ("accept", "open"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=1.0.0", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=0.0.1", True),
        ("text/plain, application/openmetrics-text;version=nonsense", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.000", False),
        (";;,,=", False),
    ],
)
def test_the_format_is_the_one_asked_for(pair: ScriptedSite, accept: str, open: bool) -> None:
    assert takes_openmetrics(accept) == open
    answer = pair.ask("GET", "/metrics", headers={"accept": accept})
    assert answer.status == 200 and answer.headers["content-type"].startswith("application/openmetrics") == open
    assert list((parse_openmetrics if open else parse_text)(answer.body.decode()))


def labels_of(made: ScriptedSite) -> dict[str, set[str]]:
    """Return the labels of each family's samples."""
    return {
        family.name: {label for sample in family.samples for label in sample.labels} - {"le"}
        for family in made.proxy.metrics.registry.collect()
    }


def test_the_page_has_every_series(fresh: ScriptedSite) -> None:
    for worker in fresh.pair(script=pulling):
        worker.counters = {"drafts": 1, "draft_tokens": 2, "accepted_draft_tokens": 1, "accepted_draft_tokens_at_0": 1,
                           "stream_items": 1, "stream_bytes": 1, **dict.fromkeys(TIER_COUNTERS, 1)}  # fmt: skip
        worker.gauges = dict.fromkeys([*STREAM_GAUGES, *(f"kv_tier_disk_{name}" for name in TIER_GAUGES)], 1)
    assert fresh.complete("hi", max_tokens=4).status == 200
    proxy = {"name": "proxy", "role": "proxy", "pid": 0, "state": "ready", "device": "cpu", "rss_bytes": 1}
    fresh.proxy.registry.show([proxy])
    fresh.proxy.metrics.discarded.labels("late")
    fresh.proxy.metrics.classes.adapters.add("sql", 4)
    forecast = fresh.proxy.load.forecast = Forecast(small_profile())
    forecast.learn("decode", "per_token", 0.1, 0.2)
    eventually(lambda: "worker" in labels_of(fresh)["pontil_spec_decode_num_draft_tokens"])
    suffix = {"counter": "_total", "info": "_info"}
    labels = labels_of(fresh)
    known = {
        family.name + suffix.get(family.type, ""): (labels[family.name], family.type, family.documentation)
        for family in fresh.proxy.metrics.registry.collect()
    }
    rows = ROW.findall(PAGE.read_text())
    written = {name: (set(named.split(",")) - {""}, kind, says) for name, named, kind, says in rows}
    assert written == known and len(rows) == len(known)


def test_every_page_names_series_that_exist(pair: ScriptedSite) -> None:
    families = labels_of(pair).keys()
    for path in (PAGE.parents[2] / "README.md", *PAGE.parents[1].rglob("*.md")):
        named = set(re.findall(r"`(pontil_[a-z0-9_]+)", path.read_text()))
        known = {name for name in named if re.sub(r"_(total|info)$", "", name) in families}
        assert named == known, path


def test_names_are_the_ones_dashboards_know(pair: ScriptedSite) -> None:
    """The names are vLLM's, but for the prefix."""
    known = """num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries prefix_cache_hits
        num_preemptions prompt_tokens generation_tokens prompt_tokens_cached request_success time_to_first_token_seconds
        inter_token_latency_seconds request_time_per_output_token_seconds e2e_request_latency_seconds
        request_queue_time_seconds request_inference_time_seconds request_prefill_time_seconds
        request_decode_time_seconds request_prompt_tokens request_generation_tokens spec_decode_num_draft_tokens
        spec_decode_num_accepted_tokens spec_decode_num_drafts spec_decode_num_accepted_tokens_per_pos"""
    assert {f"pontil_{name}" for name in known.split()} <= labels_of(pair).keys()
