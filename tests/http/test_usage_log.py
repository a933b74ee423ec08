# SPDX-License-Identifier: Apache-2.0
"""A response ends once its usage is written, on every path; a failing log stops nothing."""

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_site import HttpAnswer, ScriptedSite, site
from scripted_worker import DEADLINE, Script, ScriptedWorker, eventually, proper, silent

from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.roles import audit_usage, read_usage
from pontil.runtime.accounting import usage_log
from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.accounting.usage_tables import UsageRow
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Message, Submit, Tokens


@pytest.fixture
def logged(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer, usage_log=str(tmp_path / "usage.db")) as made:
        yield made


def rows(served: ScriptedSite) -> list[dict[str, Any]]:
    with closing(open_to_read(Path(str(served.proxy.config.usage_log)))) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute("SELECT * FROM requests ORDER BY arrived")]


@pytest.mark.parametrize("stream", [False, True])
def test_the_row_is_there_before_the_last_byte(logged: ScriptedSite, stream: bool) -> None:  # A12
    logged.pair()
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 9, "n": 2, "stream": stream}
    answer = logged.ask("POST", "/v1/completions", body, {"x-request-id": "mine"})
    (row,) = rows(logged)
    assert row["id"].startswith("mine-") and row["name"] == "mine" and answer.headers["x-request-id"] == "mine"
    assert (row["state"], row["api_key"], row["model"], row["choices"]) == ("closed", "-", "tiny", 2)
    assert row["route"] == "prefill:0>decode:0" and row["finish"] in ("length,length", "stop,stop", "length,stop")
    assert row["completion_tokens"] == row["delivered"] == row["generated"] > 0
    assert 0 <= row["first_token_seconds"] <= row["total_seconds"]
    if not stream:
        usage = answer.json["usage"]
        assert (row["prompt_tokens"], row["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])


def test_one_name_ties_header_log_line_ledger_and_row(
    logged: ScriptedSite, caplog: pytest.LogCaptureFixture
) -> None:  # F6
    logged.worker(script=waited(0.0))
    with caplog.at_level(logging.INFO, "pontil.requests"):
        body = {"model": "tiny", "prompt": "hi", "max_tokens": 4}
        answer = logged.ask("POST", "/v1/completions", body, {"x-request-id": "mine"})
    (row,) = rows(logged)
    (entry,) = logged.proxy.ledger.closed
    (line,) = (record.getMessage() for record in caplog.records if record.name == "pontil.requests")
    assert answer.headers["x-request-id"] == row["name"] == "mine" and row["id"] == entry
    usage, said = answer.json["usage"], dict(part.split("=") for part in line.split() if "=" in part)
    assert line.startswith(f"request {entry} ") and said["finish"] == row["finish"] and said["route"] == row["route"]
    counts = (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"])
    assert (said["prompt"], said["cached"], said["completion"]) == tuple(map(str, counts))
    assert counts == (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"])
    assert row["queue_seconds"] == float(said["queue"]) == 0.0  # B10
    assert said["drafts"] == "0/12", "three frames of them"  # B9
    assert said["first_token"] == said["scheduled_first_token"] == f"{row['first_token_seconds']:.3f}"
    assert logged.value("pontil_request_queue_time_seconds_count") == 1
    first, scheduled = "pontil_time_to_first_token_seconds_sum", "pontil_request_prefill_time_seconds_sum"
    assert logged.value(first) == logged.value(scheduled) > 0


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e300, 2**64 - 1, "1"])
def test_no_time_corrupts_metrics_row_or_log(
    logged: ScriptedSite, caplog: pytest.LogCaptureFixture, seconds: Any
) -> None:  # B10
    logged.worker(script=waited(seconds))
    with caplog.at_level(logging.INFO, "pontil.requests"):
        answer = logged.complete("hi", max_tokens=4)
    # A value of another type makes the proxy refuse the whole frame.
    assert answer.status == (503 if isinstance(seconds, str) else 200)
    eventually(lambda: [row["queue_seconds"] for row in rows(logged)] == [None])
    (line,) = (record.getMessage() for record in caplog.records if record.name == "pontil.requests")
    assert " queue=- " in line and " scheduled_first_token=- " in line
    assert logged.value("pontil_request_queue_time_seconds_count") == 0


@pytest.mark.parametrize("more", [0, 1])
def test_a_prompt_that_was_not_cached_or_computed_is_found_everywhere(
    tmp_path: Path, tokenizer: Tokenizer, more: int
) -> None:  # A11
    def script(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        for frame in proper(worker, submit):
            assert isinstance(frame, Tokens)
            computed = len(submit.prompt) - 2 + more
            yield replace(frame, cached_tokens=2, computed_tokens=computed) if frame.index == 0 else frame

    path = tmp_path / "usage.db"
    with site(tmp_path, tokenizer, usage_log=str(path)) as made:
        worker = made.worker(script=script)
        answer = made.complete("hello there", max_tokens=3)
        prompt = answer.json["usage"]["prompt_tokens"]
        worker.counters = {"prompt_tokens_computed": prompt - 2 + more, "prompt_tokens_computed_before": 0}
        eventually(lambda: made.proxy.ledger.books[worker.incarnation].prompts.stated_here)
        assert made.ask("GET", "/admin/ledger").json["imbalance"] == more
    wrong = [text for equal, text in audit_usage(path, None) if not equal]
    assert len(wrong) == more and all("2 were cached" in text and f"{prompt - 1} computed" in text for text in wrong)


def waited(seconds: Any) -> Script:
    def script(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        for frame in proper(worker, submit):
            assert isinstance(frame, Tokens)
            if frame.index == 0:
                yield replace(frame, queue_seconds=seconds)
            else:
                yield replace(frame, draft_tokens=4, accepted_draft_tokens=0)

    return script


def test_open_requests_are_written_down_while_they_run_and_closed_when_the_client_leaves(logged: ScriptedSite) -> None:
    worker = logged.worker(script=silent)
    connection = logged.connect()
    connection.request("POST", "/v1/completions", '{"model": "tiny", "prompt": "hi", "stream": true}')
    submit = worker.submits.get(timeout=60)
    worker.say(worker.tokens(submit, 0, [70, 71]))
    eventually(lambda: [(row["state"], row["delivered"]) for row in rows(logged)] == [("open", 2)])
    connection.close()
    eventually(lambda: [(row["state"], row["finish"]) for row in rows(logged)] == [("closed", "cancelled")])
    assert rows(logged)[0]["completion_tokens"] == 2


@pytest.mark.parametrize("begun", [False, True])
def test_a_stream_that_fails_is_billed_what_its_client_had(
    tmp_path: Path, tokenizer: Tokenizer, begun: bool
) -> None:  # fmt: skip
    """Text that may begin a stop string is held back: who had nothing else is told 503, and billed nothing."""
    with site(tmp_path, tokenizer, usage_log=str(tmp_path / "usage.db"), max_attempts=1) as logged:
        fail_a_stream(logged, begun)


def fail_a_stream(logged: ScriptedSite, begun: bool) -> None:
    worker = logged.worker(script=silent)
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 20, "stop": ["xyzzy"], "stream": True}
    with closing(logged.connect()) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body).encode())
        submit = worker.submits.get(timeout=DEADLINE)
        said = [token for text in ("so ", "xy")[not begun :] for token in logged.tokenizer.encode(text, False)]
        for index, token in enumerate(said):
            worker.say(worker.tokens(submit, index, [token]))
        eventually(lambda: [row.entry.delivered for row in logged.proxy.requests.values()] == [len(said)], "all tokens")
        response = connection.getresponse() if begun else None
        # As the row stays if the proxy dies now.
        open_row = {"generated": len(said), "completion_tokens": len(said) if begun else 0}
        eventually(
            lambda: [{name: row[name] for name in open_row} for row in rows(logged)] == [open_row], "an open row"
        )
        worker.fall_silent(logged.proxy.registry)
        answer = HttpAnswer(response or connection.getresponse())
    assert answer.status == (200 if begun else 503) and ("so" in answer.body.decode()) == begun
    eventually(lambda: [row["state"] for row in rows(logged)] == ["closed"], "a closed row")
    (row,) = rows(logged)
    assert row["completion_tokens"] == row["delivered"] == (len(said) if begun else 0)
    assert row["generated"] == len(said) and logged.proxy.ledger.imbalance == 0


def test_the_books_are_equal_after_a_clean_end(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "usage.db"
    for _ in range(2):
        with site(tmp_path, tokenizer, usage_log=str(path)) as made:
            made.pair()
            for number in range(3):
                assert made.complete("hi", max_tokens=4 + number).status == 200
            live = made.ask("GET", "/admin/ledger").json
            assert live["requests"] == 3 and live["imbalance"] == 0 and live["open"] == 0
            # The workers' own rows are written at the next checkpoint.
            eventually(lambda: all(equal for equal, _ in audit_usage(path, live)), "books that are equal")  # noqa: B023
    findings = audit_usage(path, None)
    assert all(equal for equal, _ in findings) and len(findings) == 1 + 2 * 3
    (summed,) = read_usage(path)
    assert (summed["requests"], summed["lost"], summed["completion_tokens"]) == (6, 0, 30)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE requests SET completion_tokens = completion_tokens + 1 WHERE id IN "
                         "(SELECT id FROM requests LIMIT 1)")  # fmt: skip
    assert sum(not equal for equal, _ in audit_usage(path, None)) == 2
    with pytest.raises(LaunchError, match="there is no usage log"):
        read_usage(tmp_path / "none")


def test_old_requests_leave_the_log_of_a_server_and_stay_in_its_bills(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "usage.db"
    with site(tmp_path, tokenizer, usage_log=str(path)) as made:
        made.pair()
        assert [made.complete("hi", max_tokens=4).status for _ in range(3)] == [200] * 3
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE requests SET arrived = arrived - 3 * 86400")
    before = read_usage(path)
    with site(tmp_path, tokenizer, usage_log=str(path), usage_log_days=2) as made:
        eventually(lambda: rows(made) == [], "no old request")
        made.worker()
        assert made.complete("hi", max_tokens=4).status == 200
    assert len(rows(made)) == 1 and read_usage(path)[:1] == before
    findings = audit_usage(path, None)
    assert all(equal for equal, _ in findings) and any("3 requests of up to" in text for _, text in findings)


def test_a_log_that_cannot_be_written_to_stops_nothing(logged: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(values: Iterable[UsageRow]) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    logged.worker()
    log = logged.proxy.books.log
    assert log is not None
    with monkeypatch.context() as patched:
        patched.setattr(log.file, "write", full)
        assert [logged.complete("hi", max_tokens=3).status for _ in range(3)] == [200] * 3
        eventually(lambda: logged.value("pontil_usage_log_failures") >= 1)
        ready = logged.ask("GET", "/ready")
        assert ready.status == 200 and "database or disk is full" in ready.json["usage_log"]
    eventually(lambda: len(rows(logged)) == 3, "rows that were written later")
    assert logged.value("pontil_usage_log_given_up") == 0
    eventually(lambda: logged.ask("GET", "/ready").json == {"status": "ready"})


def test_a_thread_that_fails_is_said_and_goes_on(logged: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure in the log's thread that is not the disk's, and failures that a worker reports."""
    log = logged.proxy.books.log
    assert log is not None
    worker = logged.worker()
    with monkeypatch.context() as patched:
        patched.setattr(log.file, "write", lambda values: int("no number" if values else ""))
        patched.setattr(usage_log, "ROW_FAULTS", ())
        assert logged.complete("hi", max_tokens=3).status == 200
        eventually(lambda: "no number" in logged.ask("GET", "/ready").json.get("usage_log", ""))
    eventually(lambda: len(rows(logged)) == 1, "a row that was written later")
    worker.counters = {"thread_failures_shm-connector": 2, "thread_failures_made-up": 1}
    shown = 'pontil_thread_failures_total{process="mixed:0",thread="shm-connector"} 2.0'
    eventually(lambda: shown in logged.ask("GET", "/metrics").body.decode())
    text = logged.ask("GET", "/metrics").body.decode()
    assert 'pontil_thread_failures_total{process="proxy",thread="usage-log"}' in text and "made-up" not in text
