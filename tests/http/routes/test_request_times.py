# SPDX-License-Identifier: Apache-2.0
"""/admin/requests: the latest requests, and where the time of one went."""

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from jsonschema import validate
from scripted_site import HttpAnswer, ScriptedSite, site
from scripted_worker import EMBEDDING_SIZE, ScriptedWorker, eventually, silent

from pontil.http.routes.request_times import REQUESTS, TIMELINE, TIMELINES
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import AttemptTimes, Failed, Message, Submit

SECRET = "the secret of the pyramid"


@pytest.fixture
def alone(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """A proxy with one worker."""
    with site(tmp_path, tokenizer) as made:
        made.worker(text="Hello world, and more of it")
        yield made


def rows(made: ScriptedSite) -> list[dict[str, Any]]:
    answer = made.ask("GET", "/admin/requests").json
    validate(answer, REQUESTS)
    listed: list[dict[str, Any]] = answer["requests"]
    return listed


def shown(made: ScriptedSite, name: Any) -> dict[str, Any]:
    answer = made.ask("GET", f"/admin/requests/{name}")
    assert answer.status == 200, answer.body
    validate(answer.json, TIMELINES)
    timeline: dict[str, Any] = answer.json
    return timeline


def names(timeline: dict[str, Any]) -> list[tuple[str, str]]:
    return [(span["name"], span["process"]) for span in timeline["spans"]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_shows_the_proxys_own_parts(pair: ScriptedSite, stream: bool) -> None:
    answer = pair.chat(SECRET, max_tokens=6, stream=stream, n=2)
    timeline = shown(pair, answer.headers["x-request-id"])
    validate(timeline, TIMELINE)
    assert rows(pair)[0] == {name: timeline[name] for name in rows(pair)[0]}
    proxys = [name for name, process in names(timeline) if process == "proxy"]
    assert proxys == ["receive", "tokenize", "queue", "attempt", "write"]
    assert timeline["state"] == "complete" and timeline["finish"] == "length,length"
    assert timeline["route"] == "/v1/chat/completions" and timeline["workers"] == ["prefill:0", "decode:0"]
    assert timeline["completion_tokens"] == 12 and timeline["prompt_tokens"] > 20 and timeline["caller"] == "-"
    assert [event["name"] for event in timeline["events"]] == ["first_token", "finished"]
    assert 0 < timeline["first_token_seconds"] == timeline["gaps"]["begin"] <= timeline["seconds"]
    told = json.dumps(timeline)
    assert "secret" not in told and "Hello" not in told


def test_the_leave_to_send_a_body_is_no_part_of_the_response(alone: ScriptedSite) -> None:
    body = json.dumps({"model": "tiny", "prompt": "hi", "max_tokens": 3}).encode()
    connection = alone.connect()
    connection.putrequest("POST", "/v1/completions")
    for name, value in {
        "content-type": "application/json", "expect": "100-continue", "x-request-id": "asks-first",
        "content-length": str(len(body)),
    }.items():  # fmt: skip
        connection.putheader(name, value)
    connection.endheaders()
    assert b"100 Continue" in connection.sock.recv(1000)
    connection.send(body)
    assert connection.getresponse().status == 200
    connection.close()
    proxys = [name for name, process in names(shown(alone, "asks-first")) if process == "proxy"]
    assert proxys == ["receive", "tokenize", "queue", "attempt", "write"]


def test_an_id_is_found_as_browsers_encode_it(alone: ScriptedSite) -> None:
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 3}
    assert alone.ask("POST", "/v1/completions", body, {"x-request-id": "team:7.a"}).status == 200
    (row,) = rows(alone)
    for name in ("team:7.a", "team%3A7.a", row["id"], quote(row["id"], safe="")):
        assert shown(alone, name)["id"] == row["id"]
    for hostile in ("%", "%ff", "%00", "..%2f..%2fetc", "team%253A7.a"):
        assert alone.ask("GET", f"/admin/requests/{hostile}").status == 404


def test_several_prompts_have_a_row_each(alone: ScriptedSite) -> None:
    answer = alone.complete(["hi", "ho", "he"], max_tokens=3)
    timelines = shown(alone, answer.headers["x-request-id"])["requests"]
    assert [one["id"].rpartition("-")[0] for one in timelines] == [answer.headers["x-request-id"]] * 3
    assert len({one["id"] for one in timelines}) == 3 and all(one["completion_tokens"] == 3 for one in timelines)
    assert shown(alone, timelines[1]["id"])["id"] == timelines[1]["id"]


def test_reports_of_workers_are_in_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    def timed(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        yield worker.tokens(submit, 0, [5], prompt_tokens=len(submit.prompt), cached_tokens=0, computed_tokens=2)
        # Messages of a worker stay in order, so this one is there before the last token.
        yield AttemptTimes(
            worker.incarnation, worker.proxy, submit.request_id, submit.attempt, 0.0, 0.0, [0.0, 0.0, 2], [],
        )  # fmt: skip
        yield worker.tokens(submit, 1, [6], finish_reason="stop", generated_tokens=2)

    with site(tmp_path, tokenizer) as made:
        made.worker(script=timed)
        timeline = shown(made, made.complete("hi", max_tokens=9).headers["x-request-id"])
    assert [span for span in timeline["spans"] if span["name"] == "compute"][0]["tokens"] == 2
    assert ("queue", "mixed:0") in names(timeline)
    assert ("begin", "mixed:0") in {(event["name"], event["process"]) for event in timeline["events"]}


def test_hostile_reports_are_dropped_and_counted(alone: ScriptedSite) -> None:
    worker = alone.workers[0]
    alone.complete("hi", max_tokens=3)
    name = rows(alone)[0]["id"]
    before = shown(alone, name)
    malformed = alone.value("pontil_frames_dropped_total", reason="malformed")
    stale = alone.value("pontil_frames_dropped_total", reason="stale")
    address = worker.incarnation, worker.proxy
    worker.say(AttemptTimes(*address, name, 0, math.nan))
    worker.say(AttemptTimes(*address, name, 0, 9.0, 1.0, [5.0, 2.0, 1]))
    worker.say(AttemptTimes(*address, name, 0, 9.0, 1.0, [0.0] * 300_000))
    worker.say(AttemptTimes(*address, name, 7, 9.0))
    worker.say(AttemptTimes(*address, "nobody-0", 0, 9.0))
    eventually(lambda: alone.value("pontil_frames_dropped_total", reason="stale") == stale + 2, "two strays")
    assert alone.value("pontil_frames_dropped_total", reason="malformed") == malformed + 3
    assert shown(alone, name) == before


def test_a_failover_shows_both_attempts(tmp_path: Path, tokenizer: Tokenizer) -> None:
    def failing(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        yield Failed(worker.incarnation, worker.proxy, submit.request_id, submit.attempt, "it burns " * 99)

    with site(tmp_path, tokenizer) as made:
        made.worker("mixed:0", script=failing)
        answer_of_second: list[HttpAnswer] = []
        worker = made.worker("mixed:1", text="Hello")
        for _ in range(2):
            # One of the two goes to the worker that fails first.
            answer_of_second.append(made.complete("hi", max_tokens=3))
        assert {answer.status for answer in answer_of_second} == {200} and worker.submits.qsize() == 2
        timelines = [shown(made, answer.headers["x-request-id"]) for answer in answer_of_second]
    timeline = next(one for one in timelines if one["attempts"] == 2)
    assert [span["attempt"] for span in timeline["spans"] if span["name"] == "attempt"] == [0, 1]
    (failover,) = (event for event in timeline["events"] if event["name"] == "failover")
    assert failover["reason"].startswith("it burns") and len(failover["reason"]) <= 300
    assert timeline["workers"] == ["mixed:1"] and timeline["state"] == "complete"


def test_open_failed_and_cancelled_requests_are_shown(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer, max_attempts=1) as made:
        worker = made.worker(script=silent)
        connection = made.connect()
        connection.request("POST", "/v1/completions", b'{"prompt": "hi", "stream": true}')
        submit = worker.submits.get(timeout=60)
        (row,) = rows(made)
        assert (row["state"], row["finish"], row["first_token_seconds"]) == ("open", None, None)
        timeline = shown(made, row["id"])
        assert [span["end"] for span in timeline["spans"] if span["name"] == "attempt"] == [None]
        assert timeline["gaps"]["steps"] == []
        # It grows, and the others do not.
        eventually(lambda: shown(made, row["id"])["largest"]["name"] == "attempt", "the attempt as the largest part")
        connection.close()
        eventually(lambda: rows(made)[0]["state"] == "cancelled", "the end of the request")
        assert submit.request_id == row["id"]
        connection = made.connect()
        connection.request("POST", "/v1/completions", b'{"prompt": "hi"}')
        submit = worker.submits.get(timeout=60)
        worker.say(Failed(worker.incarnation, worker.proxy, submit.request_id, 0, "no"))
        assert connection.getresponse().status == 503
        assert (rows(made)[0]["state"], rows(made)[0]["finish"]) == ("failed", "error")
        connection.close()


def test_embeddings_have_no_gaps(tmp_path: Path, tokenizer: Tokenizer) -> None:
    hello: dict[str, Any] = {"model": "vectors", "kv_fingerprint": "", "embedding_size": EMBEDDING_SIZE}
    with site(tmp_path, tokenizer, served_embedding_model_name="vectors", embedding_model="vectors") as made:
        made.worker("embed:0", **hello)
        answer = made.ask("POST", "/v1/embeddings", {"input": "hi"})
        timeline = shown(made, answer.headers["x-request-id"])
    assert timeline["model"] == "vectors" and timeline["gaps"]["steps"] == [] and timeline["workers"] == ["embed:0"]
    assert {"receive", "queue", "attempt", "write"} <= {name for name, _ in names(timeline)}


@pytest.mark.parametrize("name", ["nope", "%ff%00", "x" * 4000, "%2e%2e", "-", "%f0%9f%98%80", "'%22"])
def test_an_id_that_is_not_known_is_not_found(pair: ScriptedSite, name: str) -> None:
    answer = pair.ask("GET", f"/admin/requests/{name}")
    assert answer.status == 404 and len(answer.body) < 600
    error = answer.json["error"]
    assert error["code"] == "not_found" and error["type"] == "invalid_request_error"


def test_any_of_several_proxies_shows_a_request(tmp_path: Path, tokenizer: Tokenizer) -> None:
    shared: dict[str, Any] = {"proxies": 2, "shared_folder": str(tmp_path / "proxies")}
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    with (
        site(folders[0], tokenizer, name="proxy:0", number=0, **shared) as one,
        site(folders[1], tokenizer, name="proxy:1", number=1, **shared) as other,
    ):
        one.worker()
        name = one.complete("hi", max_tokens=3).headers["x-request-id"]
        there = shown(other, name)
        assert there["id"].startswith(name) and there == shown(one, name)
        answer = other.ask("GET", "/admin/requests/nope")
        assert answer.status == 404 and "proxy:1 answers" in answer.json["error"]["message"]
        # Questions and answers are removed.
        assert not [path for path in (tmp_path / "proxies").iterdir() if path.suffix in (".wanted", ".timeline")]


def test_slow_requests_are_logged_with_their_largest_part(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> list[str]:
        return [record.message for record in caplog.records if record.message.startswith("slow request")]

    with caplog.at_level(logging.WARNING, "pontil.requests"), site(tmp_path, tokenizer, slow_log=1e-6) as made:
        made.worker()
        name = made.complete(SECRET, max_tokens=3).headers["x-request-id"]
        eventually(lines, "the line")
        (line,) = lines()
    assert f"{name}-" in line and " largest=" in line and " total=" in line and "completion=3" in line
    assert "secret" not in line
