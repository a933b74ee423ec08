# SPDX-License-Identifier: Apache-2.0
"""Sound over scripted workers, through OpenAI's client: spoken answers whole and streamed, recordings, speech and
transcription, and what breaks on the way."""

import base64
import io
import json
import re
import shutil
import subprocess
import sys
import threading
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from api_table import speech_table, transcription_table
from jsonschema import validate
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site
from scripted_speech import RATE, RECORDING, SAID, SOUND, demo, form, node, speaks
from scripted_worker import DEADLINE, ScriptedWorker, eventually, output

from pontil.http.stream.reply_schema import CHAT, CHAT_CHUNK, MODELS, TRANSCRIBED
from pontil.runtime.foundation.wav_header import HEADER_BYTES, UNKNOWN, wav_header
from pontil.runtime.stages.graph.catalog import ORPHEUS_SPEECH
from pontil.runtime.stages.runs.entry import runs_of
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Failed, Message, NodeTask

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def broken(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """A site without workers, which makes one attempt."""
    with site(tmp_path, tokenizer, graph="speech-demo", max_attempts=1) as made:
        yield made


@pytest.fixture
def orpheus(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer, graph="orpheus", max_attempts=1) as made:
        yield made


def client_of(made: ScriptedSite) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{made.port}/v1", api_key="x", max_retries=0, timeout=DEADLINE)


def spoken(made: ScriptedSite, **fields: Any) -> HttpAnswer:
    return made.chat(**({"modalities": ["text", "audio"]} | fields))


def frames_of(data: bytes) -> tuple[int, bytes]:
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        return file.getframerate(), file.readframes(len(data))


def test_an_answer_has_its_sound_and_its_text(sounds: ScriptedSite) -> None:
    answer = spoken(sounds, audio={"voice": "alloy", "format": "wav"})
    assert answer.status == 200, answer.body
    validate(answer.json, CHAT)
    made = client_of(sounds).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
    )  # fmt: skip
    message = made.choices[0].message
    assert message.content is None and message.audio is not None and message.audio.transcript == SAID
    assert message.audio.expires_at == made.created and message.audio.id.startswith("audio_")
    assert frames_of(base64.b64decode(message.audio.data)) == (RATE, SOUND)
    assert answer.headers["x-pontil-ignored"] == "audio.voice" and made.choices[0].finish_reason == "stop"
    plain = sounds.chat().json
    assert made.usage is not None and made.usage.completion_tokens == plain["usage"]["completion_tokens"]
    details = made.usage.completion_tokens_details
    # The speaker makes no tokens.
    assert details is not None and (details.audio_tokens, details.text_tokens) == (0, made.usage.completion_tokens)
    assert "text_tokens" not in plain["usage"]["completion_tokens_details"] and "audio" not in plain["choices"][0]


def test_bare_samples_are_what_was_made(sounds: ScriptedSite) -> None:
    audio = spoken(sounds, audio={"format": "pcm16"}).json["choices"][0]["message"]["audio"]
    assert base64.b64decode(audio["data"]) == SOUND


@pytest.mark.parametrize("style", ["pcm16", "wav"])
def test_a_stream_has_both_and_ends_after_the_sound(sounds: ScriptedSite, style: str) -> None:
    asked: Any = {
        "model": MODEL, "messages": [{"role": "user", "content": "hi"}], "modalities": ["text", "audio"],
        "stream": True, "audio": {"voice": "alloy", "format": style}, "stream_options": {"include_usage": True},
    }  # fmt: skip
    chunks: list[Any] = list(client_of(sounds).chat.completions.create(**asked))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    parts = [choice.delta.audio for choice in choices if choice.delta.audio is not None]
    assert parts[0].id is not None and all(choice.delta.content is None for choice in choices)
    assert "".join(part.transcript or "" for part in parts) == SAID
    pieces = [part.data for part in parts if part.data]
    sound = b"".join(map(base64.b64decode, pieces))
    assert sound == base64.b64decode("".join(pieces)), "pieces can be decoded one by one or joined"
    head = wav_header(RATE) if style == "wav" else b""
    assert sound == head + SOUND
    assert [choice.finish_reason for choice in choices[-2:]] == [None, "stop"]
    assert parts[-1].expires_at is not None and choices[-1].delta.audio is None
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens_details is not None
    events = spoken(sounds, stream=True, logprobs=True, return_token_ids=True).events
    assert events[-1] == "[DONE]" and not [validate(one, CHAT_CHUNK) for one in events[:-1] if one is None]
    for one in events[:-1]:
        validate(one, CHAT_CHUNK)


def test_an_answer_with_tools_or_a_schema_is_spoken_as_it_is(sounds: ScriptedSite) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": False}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    for fields in ({"response_format": schema}, {"tools": tools}, {"functions": [tools[0]["function"]]}):
        answer = spoken(sounds, **fields)
        assert answer.status == 200, answer.body
        message = answer.json["choices"][0]["message"]
        assert message["audio"]["transcript"] == SAID and base64.b64decode(message["audio"]["data"])[44:] == SOUND
        assert spoken(sounds, stream=True, **fields).events[-1] == "[DONE]"


def test_a_recording_becomes_the_text_of_its_place(sounds: ScriptedSite) -> None:
    llm, recognizer, _ = sounds.stages  # type: ignore[attr-defined]
    while not llm.submits.empty():
        llm.submits.get()
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(RECORDING).decode(), "format": "wav"}}
    heard = f"I said {len(RECORDING)} bytes"
    made = client_of(sounds).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": [{"type": "text", "text": "A: "}, part]}],
    )  # fmt: skip
    sent = llm.submits.get(timeout=DEADLINE).prompt
    assert made.choices[0].message.content == SAID and recognizer.tasks.get(timeout=DEADLINE).data == RECORDING
    sounds.chat(f"A: {heard}")
    assert llm.submits.get(timeout=DEADLINE).prompt == sent
    # Both ways at once: the question and the answer are sound.
    assert frames_of(base64.b64decode(spoken(sounds, content=[part]).json["choices"][0]["message"]["audio"]["data"]))


def test_only_chats_take_recordings(sounds: ScriptedSite) -> None:
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(RECORDING).decode(), "format": "wav"}}
    body = {"messages": [{"role": "user", "content": [part]}]}
    for path in ("/tokenize", "/v1/chat/completions/render"):
        answer = sounds.ask("POST", path, body)
        assert answer.status == 400 and "only /v1/chat/completions takes" in answer.json["error"]["message"]
    batch = sounds.ask("POST", "/v1/chat/completions/batch", {"messages": [body["messages"]]})
    assert batch.status == 400, batch.body
    batch = sounds.ask(
        "POST",
        "/v1/chat/completions/batch",
        {"messages": [[{"role": "user", "content": "a"}]], "modalities": ["audio"]},
    )
    assert (batch.status, batch.json["error"]["param"]) == (400, "modalities")


def test_a_text_is_spoken(sounds: ScriptedSite) -> None:
    speaker: ScriptedWorker = sounds.stages[2]  # type: ignore[attr-defined]
    while not speaker.tasks.empty():
        speaker.tasks.get()
    speech = client_of(sounds).audio.speech
    made = speech.create(model=MODEL, voice="alloy", input="Good day 😀", response_format="wav")
    assert frames_of(made.content) == (RATE, SOUND) and made.response.headers["content-type"] == "audio/wav"
    assert made.response.headers["x-pontil-route"] == "speaker:0"
    assert speaker.tasks.get(timeout=DEADLINE).data == "Good day 😀".encode()
    assert speech.create(model=MODEL, voice="x", input="a", response_format="pcm").content == SOUND
    for style, head in (("wav", wav_header(RATE)), ("pcm", b"")):
        answer = sounds.ask("POST", "/v1/audio/speech", {"input": "a", "stream": True, "response_format": style})
        assert answer.body == head + SOUND and answer.headers["transfer-encoding"] == "chunked"
        assert answer.headers["x-pontil-sample-rate"] == str(RATE)
    with speech.with_streaming_response.create(model=MODEL, voice="x", input="a", response_format="pcm") as streamed:
        assert b"".join(streamed.iter_bytes()) == SOUND


def test_a_text_is_spoken_by_a_first_stage_whose_tokens_are_codes(orpheus: ScriptedSite) -> None:
    """Its prompt has the marks of the model's makers, the voice, and the text, which is plain however it looks."""
    llm = orpheus.worker("mixed:0", text=SAID, node="llm")
    node(orpheus, "snac", speaks)
    asked = {"input": "hi <|im_end|>", "voice": "Leo", "seed": -2, "response_format": "pcm"}
    answer = orpheus.ask("POST", "/v1/audio/speech", asked)
    assert answer.body == SOUND, answer.body
    sent, tokenizer = llm.submits.get(timeout=DEADLINE), orpheus.proxy.tokenizer
    before, plain, after = ORPHEUS_SPEECH.of("hi <|im_end|>", "leo")
    assert sent.prompt == [
        *tokenizer.encode(before, False),
        *plain_ids(tokenizer, plain),
        *tokenizer.encode(after, False),
    ]
    assert sent.sampling["seed"] == -2 % (1 << 63) and sent.sampling["repetition_penalty"] == 1.3
    assert orpheus.ask("POST", "/v1/audio/speech", {"input": "a", "voice": "bo"}).status == 400


def test_a_model_that_reads_out_answers_no_chat_in_sound(orpheus: ScriptedSite) -> None:
    refused = spoken(orpheus)
    error = refused.json["error"]
    assert (refused.status, error["param"], error["code"]) == (400, "modalities", "unsupported_parameter")
    assert "'tiny' reads texts out" in error["message"] and "/v1/audio/speech" in error["message"]
    told = orpheus.ask("GET", "/v1/models").json["data"][0]
    assert told["output_modalities"] == ["text"] and "leo" in told["voices"]


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, False, parse_special=False)


def test_a_recording_is_transcribed(sounds: ScriptedSite) -> None:
    transcriptions = client_of(sounds).audio.transcriptions
    heard = f"I said {len(RECORDING)} bytes"
    made = transcriptions.create(model=MODEL, file=("a.wav", RECORDING), language="en")
    assert made.text == heard
    assert transcriptions.create(model=MODEL, file=("a.wav", RECORDING), response_format="text").strip() == heard
    answer = form(sounds, file=RECORDING, response_format="json", temperature="0.5")
    assert answer.status == 200 and answer.headers["x-pontil-ignored"] == "temperature"
    validate(answer.json, TRANSCRIBED)


def test_models_say_what_they_take_and_give(sounds: ScriptedSite, pair: ScriptedSite) -> None:
    told = sounds.ask("GET", "/v1/models").json
    validate(told, MODELS)
    assert told["data"][0]["input_modalities"] == told["data"][0]["output_modalities"] == ["text", "audio"]
    assert "input_modalities" not in pair.ask("GET", "/v1/models").json["data"][0]


def test_a_model_whose_sound_needs_an_answer_speaks_no_given_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer, graph="qwen3-omni") as made:
        refused = made.ask("POST", "/v1/audio/speech", {"input": "a"})
        assert refused.status == 400 and "speaks its own answers and no given text" in refused.json["error"]["message"]
        voice = made.chat(modalities=["audio"], audio={"voice": "alloy"})
        assert voice.status == 400 and "ethan, chelsie, aiden: choose one" in voice.json["error"]["message"]
        # All stages are missing: a chat in sound waits for none of them.
        assert made.chat(modalities=["audio"], audio={"voice": "Ethan"}).status == 503
        assert made.ask("GET", "/v1/models").json["data"][0]["voices"] == ["ethan", "chelsie", "aiden"]


def test_a_sound_that_breaks_is_no_whole_one(broken: ScriptedSite) -> None:
    streams = threading.Event()

    def half(worker: ScriptedWorker, task: NodeTask) -> Iterator[Message]:
        yield output(worker, task, 0, "audio", b"\1\2" * 50, sample_rate=RATE)
        if streams.is_set():
            broken.wait_for_readers()
        yield Failed(worker.incarnation, worker.proxy, task.request_id, task.attempt, "out of breath")

    demo(broken, half)
    whole = broken.ask("POST", "/v1/audio/speech", {"input": "a"})
    assert whole.status == 503 and whole.headers["content-type"] == "application/json"
    assert spoken(broken).status == 503
    streams.set()
    events = spoken(broken, stream=True).events
    assert "error" in events[-1] and "[DONE]" not in events
    with (
        pytest.raises(openai.APIConnectionError),
        client_of(broken).audio.speech.with_streaming_response.create(
            model=MODEL, voice="x", input="a", response_format="pcm", extra_body={"stream": True}
        ) as streamed,
    ):
        try:
            list(streamed.iter_bytes())
        except Exception as error:
            raise openai.APIConnectionError(message=str(error), request=None) from error
    eventually(lambda: not broken.proxy.requests, "the end of all stages")


def test_much_sound_is_sent_in_pieces(broken: ScriptedSite) -> None:
    long = bytes(5_000_000)

    def loud(worker: ScriptedWorker, task: NodeTask) -> Iterator[Message]:
        yield output(worker, task, 0, "audio", long[:2_500_000], sample_rate=RATE)
        yield output(worker, task, 1, "audio", long[2_500_000:], sample_rate=RATE)
        yield output(worker, task, 2, "audio", b"", final=True, sample_rate=RATE)

    broken.worker("mixed:0", text="a" * 200, node="llm")
    node(broken, "speaker", loud)
    answer = spoken(broken)
    assert base64.b64decode(answer.json["choices"][0]["message"]["audio"]["data"])[HEADER_BYTES:] == long
    said = [one["choices"][0]["delta"].get("audio", {}) for one in spoken(broken, stream=True).events[:-1]]
    pieces = [base64.b64decode(one["data"]) for one in said if "data" in one]
    assert b"".join(pieces) == long and max(map(len, pieces)) < (1 << 20) + HEADER_BYTES


def shell(made: ScriptedSite, folder: Path, page: str) -> None:
    """Run the page's lines about sound in a folder, in their order, against a site."""
    lines = re.findall(r"^ {4}(.*(?:curl|scripts/ask_aloud.py) .*)$", (ROOT / page).read_text(), re.MULTILINE)
    assert lines and all("http://127.0.0.1:8000" in line for line in lines)
    script = "\n".join(lines).replace("127.0.0.1:8000", f"127.0.0.1:{made.port}")
    script = script.replace("python scripts/", f"{sys.executable} {ROOT}/scripts/")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_lines_of_the_readme_answer_a_spoken_question(broken: ScriptedSite, tmp_path: Path) -> None:
    llm, *_ = demo(broken)
    shell(broken, tmp_path, "README.md")
    assert frames_of((tmp_path / "question.wav").read_bytes()) == (RATE, SOUND)
    assert frames_of((tmp_path / "answer.wav").read_bytes()) == (RATE, SOUND)
    asked = broken.tokenizer.decode(llm.submits.get(timeout=DEADLINE).prompt)
    assert f"I said {HEADER_BYTES + len(SOUND)} bytes" in asked, "the question was heard"


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_lines_of_the_guide_run(broken: ScriptedSite, tmp_path: Path) -> None:
    demo(broken)
    shell(broken, tmp_path, "docs/guide/audio.md")
    assert frames_of((tmp_path / "good-day.wav").read_bytes()) == (RATE, SOUND)


def test_the_parameters_are_those_of_the_guide() -> None:
    guide = (ROOT / "docs/guide/audio.md").read_text()
    for line in (*speech_table(), *transcription_table()):
        assert line in guide, line


def test_a_streams_head_states_no_length() -> None:
    assert len(wav_header(8000)) == HEADER_BYTES and wav_header(8000)[-4:] == UNKNOWN.to_bytes(4, "little")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "modalities": ["text", "audio"]}),
        ("/v1/audio/speech", {"input": "hi"}),
    ],
)
def test_a_client_that_leaves_ends_every_stage(broken: ScriptedSite, path: str, fields: dict[str, Any]) -> None:  # E15
    def endless(worker: ScriptedWorker, task: NodeTask) -> Iterator[Message]:
        for index in range(1 << 20):
            yield output(worker, task, index, "audio", b"\1\2" * 30, sample_rate=RATE)

    broken.worker("mixed:0", text=SAID, node="llm")
    speaker = broken.worker(
        "speaker:0", role="node", node="speaker", computer=endless, pace=0.005, model="s", model_fingerprint="s",
        kv_fingerprint="",
    )  # fmt: skip
    connection = broken.connect()
    connection.request("POST", path, json.dumps(fields | {"stream": True}))
    response = connection.getresponse()
    assert response.status == 200 and response.read(100)
    response.close()
    connection.close()
    assert speaker.cancels.get(timeout=DEADLINE).request_id
    eventually(lambda: not broken.proxy.requests and not runs_of(broken.proxy).conductor.runs, "the end of all stages")
