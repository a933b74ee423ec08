# SPDX-License-Identifier: Apache-2.0
"""Batches with Anthropic's client: one that ends, read line by line, and one that is cancelled."""

import sys
import time
from typing import Any

import anthropic

URL, MODEL = sys.argv[1:3]
client = anthropic.Anthropic(base_url=URL, api_key="unused", max_retries=0, timeout=120.0)


def line(name: str, tokens: int = 5) -> Any:
    turn = {"role": "user", "content": "Hi"}
    return {"custom_id": name, "params": {"model": MODEL, "max_tokens": tokens, "messages": [turn]}}


def ended(name: str) -> Any:
    deadline = time.monotonic() + 60
    while (batch := client.messages.batches.retrieve(name)).processing_status != "ended":
        assert time.monotonic() < deadline, "the batch does not end"
        time.sleep(0.1)  # another process is waited for
    return batch


batch = client.messages.batches.create(requests=[line("a"), line("b")])
over = ended(batch.id)
results = {one.custom_id: one.result for one in client.messages.batches.results(batch.id)}
assert {name: one.type for name, one in results.items()} == {"a": "succeeded", "b": "succeeded"}
assert over.request_counts.succeeded == 2 and results["a"].message.usage.output_tokens > 0
more = client.messages.batches.create(requests=[line(str(number), 100) for number in range(50)])
client.messages.batches.cancel(more.id)
counts = ended(more.id).request_counts
assert counts.succeeded + counts.canceled == 50
assert {batch.id, more.id} <= {one.id for one in client.messages.batches.list(limit=5)}
assert client.messages.batches.delete(batch.id).id == batch.id
print("batches: well")
