# SPDX-License-Identifier: Apache-2.0
"""Batches through the death of all processes at once, and by OpenAI's client: each line is answered and billed once."""

import json
import random
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from disturbed import options
from openai import OpenAI
from served import Served, launched, wait_for

CHAT = "/v1/chat/completions"


def client_of(served: Served) -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", max_retries=0)


def lines_of(model: str, count: int) -> bytes:
    def body(number: int) -> dict[str, Any]:
        return {"model": model, "messages": [{"role": "user", "content": f"{number}?"}], "max_tokens": 4 + number % 9}

    lines = (
        {"custom_id": f"l{number}", "method": "POST", "url": CHAT, "body": body(number)} for number in range(count)
    )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def kill_everything(served: Served) -> None:
    launch, *children = served.tree()
    for process in (launch, *children):
        process.kill()
    served.process.wait(30)
    psutil.wait_procs(children, 30)


def begun(client: OpenAI, lines: int) -> str:
    model = client.models.list().data[0].id
    file = client.files.create(file=("in.jsonl", lines_of(model, lines)), purpose="batch")
    return str(client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id)


def whole(client: OpenAI, batch_id: str, lines: int) -> list[dict[str, Any]]:
    """Wait for the end of a batch, for as long as lines of it end, and return what it tells."""
    done = 0
    while client.batches.retrieve(batch_id).status != "completed":
        if done < lines:
            wait_for(partial(has_more, client, batch_id, done), 120, "progress")
            done = counted(client, batch_id)
        else:
            wait_for(lambda: client.batches.retrieve(batch_id).status == "completed", 120, "the batch's end")
    over = client.batches.retrieve(batch_id)
    assert over.request_counts is not None and over.request_counts.completed == lines
    return [json.loads(line) for line in client.files.content(str(over.output_file_id)).read().splitlines()]


@pytest.mark.long
@pytest.mark.parametrize(("lines", "deaths"), [(5000, 10)])
def test_each_line_is_answered_and_billed_once_through_ten_deaths_of_everything(
    tmp_path: Path, lines: int, deaths: int
) -> None:
    chance, pause, log = random.Random(3), threading.Event(), tmp_path / "usage.db"
    words, batch_id, settled = ("--share-devices", *options(tmp_path), "--usage-log", str(log)), "", 0
    for _ in range(deaths):
        with launched(tmp_path, *words) as served:
            client = client_of(served)
            batch_id = batch_id or begun(client, lines)
            wait_for(partial(has_more, client, batch_id, settled), 60, "progress")
            pause.wait(chance.uniform(0, 2))  # the moment is meant to be any
            settled = counted(client, batch_id)
            kill_everything(served)
    with launched(tmp_path, *words) as served:
        told = whole(client_of(served), batch_id, lines)
    assert 0 < settled < lines, "it was killed in the middle each time"
    assert Counter(line["custom_id"] for line in told) == {f"l{number}": 1 for number in range(lines)}
    query = "SELECT name, completion_tokens FROM requests WHERE instr(name, ?) = 1 AND delivered > 0"
    with closing(sqlite3.connect(log)) as database:
        rows = database.execute(query, (batch_id,)).fetchall()
    assert Counter(name for name, _ in rows) == {f"{batch_id}-{number}": 1 for number in range(1, lines + 1)}
    usage = sum(line["response"]["body"]["usage"]["completion_tokens"] for line in told)
    assert usage == sum(tokens for _, tokens in rows)


def has_more(client: OpenAI, batch_id: str, before: int) -> bool:
    return counted(client, batch_id) > before


def counted(client: OpenAI, batch_id: str) -> int:
    counts = client.batches.retrieve(batch_id).request_counts
    return 0 if counts is None else counts.completed


@pytest.mark.long
def test_openais_client_runs_unchanged(small_pair: Served) -> None:
    client = client_of(small_pair)
    model = client.models.list().data[0].id
    file = client.files.create(file=("in.jsonl", lines_of(model, 20)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"a": "b"})
    wait_for(lambda: client.batches.retrieve(batch.id).status == "completed", 60, "the batch's end")
    over = client.batches.retrieve(batch.id)
    assert over.output_file_id and over.metadata == {"a": "b"}
    assert len(client.files.content(over.output_file_id).text.splitlines()) == 20
    assert batch.id in [one.id for one in client.batches.list(limit=5)]
    assert {file.id, over.output_file_id} <= {one.id for one in client.files.list()}
    assert client.files.retrieve(file.id).filename == "in.jsonl"
    more = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    client.batches.cancel(more.id)
    wait_for(lambda: client.batches.retrieve(more.id).status in ("cancelled", "completed"), 60, "its end")
    assert client.files.delete(file.id).deleted
