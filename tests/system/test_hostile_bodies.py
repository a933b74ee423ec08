# SPDX-License-Identifier: Apache-2.0
"""The hostile bodies against real processes: none is restarted, and a concurrent stream continues to its end.

By default tests/http/test_hostile_bodies.py sends each one beside a stream, to scripted workers, and tests/world sends
bodies that do not fit to a launch under faults (`hostile_requests_have_a_defined_answer`)."""

import json
import random
import threading
from typing import Any

import pytest
from hostile_bodies import HI, cases
from oracle import at_rest
from served import Served

STREAMED = {
    "prompt": "Once upon a time",
    "max_tokens": 100,
    "temperature": 0,
    "ignore_eos": True,
    "seed": 1,
}


pytestmark = pytest.mark.long


class StreamUnderAttack:
    """One completion, read while a test does something else."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.events: list[dict[str, Any]] = []
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self) -> None:
        self.events = self.served.stream("/v1/completions", STREAMED)

    def text(self) -> str:
        self.thread.join(120)
        return "".join(choice["text"] for event in self.events for choice in event["choices"])


def processes(served: Served) -> dict[str, tuple[int, int]]:
    return {name: (row["pid"], row["restarts"]) for name, row in served.topology().items()}


def test_no_body_ends_a_process_or_a_stream(pair: Served) -> None:
    before, alone = processes(pair), StreamUnderAttack(pair).text()
    assert alone
    stream = StreamUnderAttack(pair)
    for hostile in cases():
        if not stream.thread.is_alive():
            assert stream.text() == alone
            stream = StreamUnderAttack(pair)
        reply = pair.request("POST", hostile.path, hostile.make())
        body = json.loads(reply.text())
        if reply.status == 200:
            assert hostile.may_be_served, hostile.name
        else:
            assert 400 <= reply.status < 500 and "error" in body, (hostile.name, reply.status, body)
    assert stream.text() == alone
    assert processes(pair) == before
    assert pair.request("POST", "/v1/completions", HI).status == 200
    at_rest(pair)


def test_minutes_of_all_of_them_at_once_end_nothing(pair: Served) -> None:
    """Several clients, each with the whole table in an order of its own."""
    before, alone = processes(pair), StreamUnderAttack(pair).text()
    wrong: list[str] = []

    def client(seed: int) -> None:
        for hostile in random.Random(seed).sample(list(cases()), len(list(cases()))):
            reply = pair.request("POST", hostile.path, hostile.make())
            reply.text()
            # Overload is refused with a 503 too, which is not the body's fault.
            if reply.status not in (200, 503) and not 400 <= reply.status < 500:
                wrong.append(f"{hostile.name}: {reply.status}")

    clients = [threading.Thread(target=client, args=(seed,), daemon=True) for seed in range(4)]
    for each in clients:
        each.start()
    while any(each.is_alive() for each in clients):
        assert StreamUnderAttack(pair).text() == alone
    assert not wrong and processes(pair) == before
    at_rest(pair)
