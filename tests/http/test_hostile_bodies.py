# SPDX-License-Identifier: Apache-2.0
"""A stream continues to its end, whatever other clients send meanwhile."""

import json
import os
import queue
import threading
from collections.abc import Iterator

import pytest
from hostile_bodies import Hostile, cases
from scripted_site import ScriptedSite, site
from scripted_worker import DEADLINE, ScriptedWorker, eventually, proper

from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Message, Submit

ANSWER = "Hello 😀 world"
# Tokens of the stream: more than all tests ask for.
MOST = 2000


class Reading:
    """A stream that is read continuously in the background, and whose tokens come when they are asked for."""

    def __init__(self, served: ScriptedSite) -> None:
        self.served, self.pid, self.loop = served, os.getpid(), served.loop
        self.worker = served.worker("mixed:0", ANSWER, script=self.script, max_model_len=8192, num_blocks=1024)
        self.begin()

    def begin(self) -> None:
        """Begin a stream, and wait for its first token."""
        self.submits = queue.Queue[Submit]()
        self.lines: list[bytes] = []
        self.given = 0
        self.thread = threading.Thread(target=self.read, args=(self.lines,), daemon=True)
        self.thread.start()
        self.submit = self.submits.get(timeout=DEADLINE)
        self.goes_on()

    def script(self, worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        if not submit.sampling["ignore_eos"]:
            return proper(worker, submit)
        self.submits.put(submit)
        return iter(())

    def read(self, lines: list[bytes]) -> None:
        connection = self.served.connect()
        body = {"prompt": "a", "max_tokens": MOST, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        for line in connection.getresponse():
            if line.startswith(b"data: "):
                lines.append(line[6:].strip())

    def give(self, tokens: int) -> None:
        for index in range(self.given, self.given + tokens):
            last = {"finish_reason": "length", "generated_tokens": MOST} if index + 1 == MOST else {}
            self.worker.say(self.worker.tokens(self.submit, index, [40], **last))
        self.given += tokens

    def goes_on(self) -> None:
        seen = len(self.lines)
        self.give(1)
        eventually(lambda: len(self.lines) > seen, "another event")


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[Reading]:
    with site(tmp_path_factory.mktemp("hostile"), tokenizer) as made:
        yield Reading(made)


@pytest.mark.parametrize("hostile", list(cases()), ids=lambda one: one.name.replace(" ", "-"))
def test_it_is_answered_and_the_stream_goes_on(reading: Reading, hostile: Hostile) -> None:
    reading.give(3)
    answer = reading.served.ask("POST", hostile.path, hostile.make())
    if answer.status == 200:
        assert hostile.may_be_served
        choices = answer.json.get("choices", [])
        assert all((one.get("text") or one["message"]["content"]) == ANSWER[:2] for one in choices), answer.body[:300]
    else:
        error = answer.json["error"]
        assert 400 <= answer.status < 500 and error["type"] == "invalid_request_error", answer.body[:300]
        assert len(error["message"]) < 500
    reading.goes_on()
    assert (os.getpid(), reading.served.loop) == (reading.pid, reading.loop) and reading.served.thread.is_alive()


def test_the_stream_ends_whole(reading: Reading) -> None:
    reading.give(MOST - reading.given)
    reading.thread.join(3 * DEADLINE)
    assert not reading.thread.is_alive()
    *events, done = reading.lines
    text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
    assert (done, text) == (b"[DONE]", reading.served.tokenizer.decode([40]) * MOST)
    eventually(lambda: reading.served.proxy.idle)
    reading.begin()
