# SPDX-License-Identifier: Apache-2.0
"""Checks of batches, which a server may lack."""

import json
import threading
from typing import Any

from pontil.launcher.tools.conformance.api import Api, ApiAnswer, PartRefused, expect
from pontil.launcher.tools.conformance.check import Check, topic

CHECKS: list[Check] = []
batches = topic("batches", CHECKS)

ABSENT = (404, 405, 501)
MESSAGES = "/v1/messages/batches"
COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")
# Looks at a batch of two short requests, and seconds between them.
LOOKS, PAUSE = 300, 0.1


def there(answer: ApiAnswer, path: str) -> dict[str, Any]:
    """Return a good answer. Raises PartRefused where there is no such path."""
    if answer.status in ABSENT:
        raise PartRefused(f"there is nothing at {path}")
    return answer.good()


def begun(api: Api) -> dict[str, Any]:
    """Begin a batch of two messages, of which one is wrong."""
    params = {"model": api.model, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    wrong = params | {"messages": [{"role": "nobody", "content": "Hi"}]}
    lines = [{"custom_id": "good", "params": params}, {"custom_id": "wrong", "params": wrong}]
    return there(api.post(MESSAGES, {"requests": lines}), MESSAGES)


def ended(api: Api, name: str) -> dict[str, Any]:
    """Return a batch once it has ended. Raises Difference where it does not."""
    pause = threading.Event()
    for _ in range(LOOKS):
        batch = api.get(f"{MESSAGES}/{name}").good()
        if batch["processing_status"] == "ended":
            return batch
        pause.wait(PAUSE)
    expect(False, "a batch of two short messages does not end")
    return {}


@batches("a batch of messages has id, type, status, times and counts")
def shape(api: Api) -> None:
    batch = begun(api)
    expect(batch["type"] == "message_batch" and batch["id"] and batch["created_at"] < batch["expires_at"], "heading")
    counts = batch["request_counts"]
    expect(sum(counts[name] for name in COUNTS) == 2, f"request_counts {counts}")


@batches("each request of a batch has one result, by its custom_id")
def results(api: Api) -> None:
    name = begun(api)["id"]
    expect(ended(api, name)["results_url"], "a batch that has ended has no results_url")
    told = [json.loads(line) for line in api.get(f"{MESSAGES}/{name}/results").data.splitlines()]
    kinds = sorted((line["custom_id"], line["result"]["type"]) for line in told)
    expect(kinds == [("good", "succeeded"), ("wrong", "errored")], f"results {kinds}")


@batches("batches are listed, the newest first")
def listed(api: Api) -> None:
    name = begun(api)["id"]
    page = api.get(f"{MESSAGES}?limit=1").good()
    expect([batch["id"] for batch in page["data"]] == [name] and "has_more" in page, f"the list {page}"[:200])


@batches("a batch of a file that is not there is refused")
def absent(api: Api) -> None:
    asked = {"input_file_id": "file-none", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    answer = api.post("/v1/batches", asked)
    expect(answer.status in (400, 404), f"expected status 400 or 404, not {answer.shown}")
    answer.error()
