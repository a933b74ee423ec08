# SPDX-License-Identifier: Apache-2.0
"""The limits of a key are enforced, and affect no other key."""

import base64
import hashlib
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site
from scripted_speech import RECORDING, demo, form
from scripted_worker import DEADLINE, ScriptedWorker, eventually

from pontil.runtime.grammar.processes.bounded_process import GrammarProcess
from pontil.runtime.proxy.admission.rate_limits import JITTER
from pontil.runtime.proxy.requests.shared_room import SharedRoom
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Message, Submit

PNG = "iVBORw0KGgo="
ALICE, BOB = "sk-alice-0123456789", "sk-bob-0123456789"
CALLERS = tuple((name, hashlib.sha256(key.encode()).hexdigest()) for name, key in (("alice", ALICE), ("bob", BOB)))


@contextmanager
def limited(folder: Path, tokenizer: Tokenizer, **settings: float) -> Iterator[ScriptedSite]:
    """A site where Alice's key has these limits and Bob's has none."""
    with site(folder, tokenizer, callers=CALLERS, allowances=(("alice", tuple(settings.items())),)) as made:
        yield made


@contextmanager
def speaking(folder: Path, tokenizer: Tokenizer, **settings: float) -> Iterator[ScriptedSite]:
    """A site of a model that hears and speaks, with the same limits."""
    allowances = (("alice", tuple(settings.items())),)
    with site(folder, tokenizer, callers=CALLERS, allowances=allowances, graph="speech-demo") as made:
        demo(made)
        yield made


def begin(made: ScriptedSite, key: str, **fields: Any) -> http.client.HTTPConnection:
    connection = made.connect()
    body = json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 4} | fields)
    connection.request("POST", "/v1/completions", body, {"authorization": f"Bearer {key}"})
    return connection


def ask(made: ScriptedSite, key: str, **fields: Any) -> HttpAnswer:
    connection = begin(made, key, **fields)
    answer = HttpAnswer(connection.getresponse())
    connection.close()
    return answer


def silent(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    """Yield one token, and nothing more."""
    yield worker.tokens(submit, 0, worker.answer[:1])


@pytest.mark.parametrize("settings", [{"requests": 1}, {"tokens": 8}], ids=str)
def test_what_a_key_has_in_flight(tmp_path: Path, tokenizer: Tokenizer, settings: dict[str, float]) -> None:
    with limited(tmp_path, tokenizer, **settings) as made:
        worker = made.worker(script=silent)
        first = begin(made, ALICE, stream=True)
        submit = worker.submits.get(timeout=DEADLINE)
        refused = ask(made, ALICE)
        assert (refused.status, refused.json["error"]["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["retry-after"] in ("1", "2"), refused.body
        others = begin(made, BOB, stream=True)
        assert worker.submits.get(timeout=DEADLINE).request_id != submit.request_id
        first.close()
        eventually(lambda: ask_late(made) == 200, "room for the next")
        others.close()


def ask_late(made: ScriptedSite) -> int:
    """Return the status of a stream whose client disconnects after the head."""
    connection = begin(made, ALICE, stream=True)
    status = connection.getresponse().status
    connection.close()
    return status


def test_so_many_requests_begin_in_a_minute(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with limited(tmp_path, tokenizer, rate=3.0) as made:
        made.worker()
        assert [ask(made, ALICE).status for _ in range(4)] == [200, 200, 200, 429]
        refused = ask(made, ALICE)
        assert 1 <= int(refused.headers["retry-after"]) <= 21 * (1 + JITTER)
        assert [ask(made, BOB).status for _ in range(4)] == [200] * 4
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{made.port}/v1", api_key=ALICE, max_retries=0)
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model=MODEL, prompt="hi", max_tokens=1)


def test_prompts_of_one_request_are_let_in_together_or_not_at_all(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with limited(tmp_path, tokenizer, requests=3, rate=4.0) as made:
        worker = made.worker()
        never = ask(made, ALICE, prompt=["a"] * 4)
        assert (never.status, never.json["error"]["code"]) == (400, "key_limit_exceeded")
        assert ask(made, ALICE, prompt=["a"] * 3).status == 200
        later = ask(made, ALICE, prompt=["a"] * 3)
        assert later.status == 429 and worker.submits.qsize() == 3, "nothing of it has begun"
        assert ask(made, ALICE).status == 200


def test_nothing_is_compiled_for_a_key_beyond_its_limits(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    async def counting(process: GrammarProcess, grammar: str) -> None:
        compiled.append(grammar)

    monkeypatch.setattr(GrammarProcess, "check", counting)
    with limited(tmp_path, tokenizer, rate=1.0) as made:
        made.worker()
        assert ask(made, ALICE).status == 200
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "structured_outputs": {"regex": "a"}}
        batch = chat | {"messages": [chat["messages"]]}
        asked = (
            ("/v1/completions", {"model": MODEL, "prompt": "hi", "structured_outputs": {"regex": "a"}}),
            ("/v1/chat/completions", chat),
            ("/v1/chat/completions/batch", batch),
            ("/v1/responses", {"input": "hi", "text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}}),
        )
        for path, body in asked:
            answer = made.ask("POST", path, body, {"authorization": f"Bearer {ALICE}"})
            assert answer.status == 429 and not compiled, (path, answer.body)
        assert made.value("pontil_requests_refused_total", reason="key_limit") == len(asked)
        assert ask(made, BOB, structured_outputs={"regex": "a"}).status == 200 and compiled
        words = made.ask("POST", "/v1/responses/input_tokens", {"input": "hi"}, {"authorization": f"Bearer {ALICE}"})
        assert words.status == 200, "only counting is no request of its limits"


def test_a_stream_that_is_told_again_is_a_request_of_its_rate(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Its tokens are counted once."""
    limits = (("alice", (("rate", 3.0), ("requests", 1.0), ("tokens", 20.0))),)
    with site(tmp_path, tokenizer, callers=CALLERS, allowances=limits, resume_folder=str(tmp_path / "streams")) as made:
        made.worker()
        headers = {"authorization": f"Bearer {ALICE}"}
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 4, "stream": True}
        begun = made.ask("POST", "/v1/completions", body, headers | {"pontil-resume": "1"})
        assert begun.status == 200
        again = headers | {"last-event-id": begun.headers["x-pontil-stream"]}
        told = [made.ask("POST", "/v1/completions", {}, again) for _ in range(3)]
        assert [one.status for one in told] == [200, 200, 429], told[-1].body
        assert told[0].text == told[1].text == begun.text != "" and told[2].headers["retry-after"]
        assert made.value("pontil_requests_refused_total", reason="key_limit") == 1


def transcribe(made: ScriptedSite, key: str) -> int:
    return form(made, {"authorization": f"Bearer {key}"}, file=RECORDING).status


def test_a_transcription_is_one_request_of_its_key(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with speaking(tmp_path, tokenizer, rate=2.0, requests=1, tokens=1) as made:
        assert [transcribe(made, ALICE) for _ in range(3)] == [200, 200, 429]
        assert [transcribe(made, BOB) for _ in range(3)] == [200] * 3


def test_a_recording_beyond_the_limits_of_its_key_takes_no_room(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with speaking(tmp_path, tokenizer, rate=1.0) as made:
        assert transcribe(made, ALICE) == 200
        monkeypatch.setattr(SharedRoom, "take", lambda room, caller, size: size < len(RECORDING))
        assert transcribe(made, BOB) == 503, "no room"
        assert transcribe(made, ALICE) == 429, "which is looked at first"
        speech = made.ask("POST", "/v1/audio/speech", {"input": "hi"}, {"authorization": f"Bearer {ALICE}"})
        assert speech.status == 429


def test_a_chat_with_recordings_is_one_request_of_its_key(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """The recognizer's work is a part of it, and gives the key no rate anew."""
    with speaking(tmp_path, tokenizer, rate=2.0, requests=1) as made:
        part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(RECORDING).decode(), "format": "wav"}}
        body = {"model": MODEL, "messages": [{"role": "user", "content": [part, part]}], "max_tokens": 4}

        def chat() -> int:
            return made.ask("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {ALICE}"}).status

        assert [chat() for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/responses/input_tokens"])
def test_a_count_is_a_request_of_the_rate_if_it_has_images(tmp_path: Path, tokenizer: Tokenizer, path: str) -> None:
    """None is fetched or decoded for a key beyond its rate. Here nobody encodes any."""
    url, head = f"data:image/png;base64,{PNG}", {"authorization": f"Bearer {ALICE}"}
    blocks = [{"type": "image", "source": {"type": "url", "url": url}}]
    parts = [{"type": "input_image", "image_url": url}]
    is_message = path.startswith("/v1/messages")
    turn = {"role": "user", "content": blocks if is_message else parts}
    body = {"messages" if is_message else "input": [turn]}
    allowances = (("alice", (("rate", 2.0),)),)
    with site(tmp_path, tokenizer, callers=CALLERS, allowances=allowances, graph="qwen3-omni") as made:
        made.worker("mixed:0", node="thinker")
        statuses = [made.ask("POST", path, body, head).status for _ in range(3)]
        assert statuses == [503, 503, 429]
        turn["content"] = "hi"
        assert made.ask("POST", path, body, head).status == 200
        assert made.value("pontil_requests_refused_total", reason="key_limit") == 1
