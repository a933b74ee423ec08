# SPDX-License-Identifier: Apache-2.0
"""Batches that are cancelled, or whose window is over, while lines run: each line has one outcome, and what was
answered before is billed once."""

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from batch_asks import begun, bills, ended, line, shown, told, upload
from sanic import Sanic
from scripted_site import ScriptedSite, site
from scripted_worker import ScriptedWorker, eventually, proper
from small_disk import filled, needed_disk

from pontil.http.access.keyring import Keyring
from pontil.http.batch import runner, running_batch
from pontil.http.batch.running_batch import ENDS
from pontil.http.store.batch_book import CANCELLED, DONE, EXPIRED, REVOKED
from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Message, Submit

CODES = {EXPIRED: "batch_expired", REVOKED: "invalid_api_key"}
QUICK, STUCK, MORE, LONG_ANSWER = 6, 30, 50, 77


def stuck(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    """Answer, but stop in the middle of a long answer."""
    is_long = submit.sampling["max_tokens"] == LONG_ANSWER
    return islice(proper(worker, submit), 2) if is_long else proper(worker, submit)


def cancel(made: ScriptedSite, batch: str) -> None:
    assert made.ask("POST", f"/v1/batches/{batch}/cancel").json["status"] == "cancelling"


def expire(made: ScriptedSite, batch: str) -> None:
    with closing(sqlite3.connect(f"{made.proxy.config.usage_log}.batches/batches.db")) as database, database:
        database.execute("UPDATE batches SET window = 0 WHERE id = ?", (batch,))


def keyring_is(made: ScriptedSite, *callers: str) -> None:
    ring = Keyring(tuple((name, hashlib.sha256(name.encode()).hexdigest()) for name in callers))
    Sanic.get_app(f"pontil-{made.proxy.incarnation}").ctx.access.keyring = ring


def unfinished(made: ScriptedSite) -> list[str]:
    with closing(sqlite3.connect(f"{made.proxy.config.usage_log}.batches/batches.db")) as database:
        rows = database.execute("SELECT id FROM batches WHERE state IN ('in_progress', 'cancelling')").fetchall()
    return [name for (name,) in rows]


def revoke(made: ScriptedSite, batch: str) -> None:
    """Take the caller's key away until the batch has ended."""
    keyring_is(made, "other")
    eventually(lambda: not unfinished(made), "its end")
    keyring_is(made)


@pytest.mark.parametrize(("end", "outcome"), [(cancel, CANCELLED), (expire, EXPIRED), (revoke, REVOKED)])
def test_each_line_has_one_outcome_when_the_batch_ends_while_lines_run(
    end: Callable[[ScriptedSite, str], None],
    outcome: str,
    tmp_path: Path,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "LOOK", 0.05)
    monkeypatch.setattr(running_batch, "LOOK", 0.05)
    with site(tmp_path, tokenizer, usage_log=str(tmp_path / "usage.db")) as made:
        worker = made.worker(script=stuck)
        lines = [line(f"q{n}") for n in range(QUICK)] + [line(f"s{n}", max_tokens=LONG_ANSWER) for n in range(STUCK)]
        batch = begun(made, lines + [line(f"m{n}") for n in range(MORE)])
        eventually(lambda: len(told(made, shown(made, batch)["output_file_id"])) == QUICK, "the quick answers")
        eventually(lambda: worker.submits.qsize() >= QUICK + 8, "lines in flight")
        end(made, batch["id"])
        over = ended(made, batch)
        assert over["status"] == ENDS[outcome]
        assert set(told(made, over["output_file_id"])) == {f"q{n}" for n in range(QUICK)}
        if outcome != CANCELLED:
            late = told(made, over["error_file_id"])
            assert set(late) == {f"{kind}{n}" for kind, count in (("s", STUCK), ("m", MORE)) for n in range(count)}
            assert {one["error"]["code"] for one in late.values()} == {CODES[outcome]}
        if outcome == REVOKED:
            assert "revoked" in over["errors"]["data"][0]["message"] and over["failed_at"] is not None
        assert bills(made, batch["id"]) == {f"{batch['id']}-{n}": 1 for n in range(1, QUICK + 1)}
        eventually(lambda: made.proxy.idle, "the end of what ran")
        with closing(open_to_read(tmp_path / "usage.db")) as log:
            rows = log.execute("SELECT line, outcome FROM batch_lines").fetchall()
    assert Counter(line for line, _ in rows) == dict.fromkeys(range(1, QUICK + STUCK + MORE + 1), 1)
    assert Counter(outcome for _, outcome in rows) == {DONE: QUICK, outcome: STUCK + MORE}


def test_a_batch_of_messages_whose_key_is_revoked_says_so(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker was there yet, so that none of it has begun."""
    monkeypatch.setattr(runner, "LOOK", 0.05)
    monkeypatch.setattr(running_batch, "LOOK", 0.05)
    with site(tmp_path, tokenizer, usage_log=str(tmp_path / "usage.db")) as made:
        keyring_is(made, "a", "b")
        own = {"authorization": "Bearer a"}
        params = {"max_tokens": 3, "messages": [{"role": "user", "content": "a"}]}
        asked = {"requests": [{"custom_id": f"r{n}", "params": params} for n in range(3)]}
        path = f"/v1/messages/batches/{made.ask('POST', '/v1/messages/batches', asked, own).json['id']}"
        keyring_is(made, "b")
        eventually(lambda: not unfinished(made), "its end")
        keyring_is(made, "a", "b")
        over = made.ask("GET", path, None, own).json
        assert over["processing_status"] == "ended" and over["request_counts"]["errored"] == 3
        results = [json.loads(line) for line in made.ask("GET", f"{path}/results", None, own).body.splitlines()]
        assert {one["result"]["type"] for one in results} == {"errored"} and len(results) == 3
        error = results[0]["result"]["error"]
        assert error["type"] == "error" and error["error"]["type"] == "authentication_error"
        assert "revoked" in error["error"]["message"]


@pytest.mark.long
def test_a_batch_waits_for_room_on_a_full_disk(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """The usage log and the batch's files are on a disk that fills up in the middle: nothing is lost, or told twice."""
    lines = [line(f"a{n}") for n in range(400)]
    with needed_disk(tmp_path) as disk, site(tmp_path, tokenizer, usage_log=str(disk / "usage.db")) as made:
        made.worker()
        batch = begun(made, lines)
        eventually(lambda: told(made, shown(made, batch)["output_file_id"]), "a first answer")
        with filled(disk):
            eventually(lambda: made.proxy.books.complaint, "a usage log that cannot be written")
            answer = upload(made, [line("b", "x" * 5000)] * 100)
            assert answer.status == 503, answer.body
            before = shown(made, batch)["request_counts"]["completed"]
            assert before < len(lines)
            eventually(lambda: not made.proxy.requests, "a pause")
            assert made.proxy.books.log is not None and made.proxy.books.log.waiting < 300, "it runs on"
        over = ended(made, batch)
        assert over["status"] == "completed" and over["request_counts"]["completed"] == len(lines)
        assert set(told(made, over["output_file_id"])) == {f"a{n}" for n in range(len(lines))}
        assert bills(made, batch["id"]) == {f"{batch['id']}-{n}": 1 for n in range(1, len(lines) + 1)}
