# SPDX-License-Identifier: Apache-2.0
"""The built-in speech pipeline as real processes with real weights: a spoken question is answered in speech, also when
workers die on the way (E)."""

import base64
import wave
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import psutil
import pytest
from oracle import settled
from served import Served, launched
from spoken import speak

from pontil.runtime.stages.nodes.libraries import missing

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(missing()), reason=f"speech needs {', '.join(missing())}: pip install pontil[speech]"),
]
STORY = "Tell me in three short sentences what the sea is like at night."
ASKED: dict[str, Any] = {"max_tokens": 80, "temperature": 0, "audio": {"voice": "heart", "format": "pcm16"}}
# Twice the 24,000 samples of a second.
RATE = 48000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with launched(tmp_path_factory.mktemp("speech"), "--model", "speech-demo", "--disagg", "always") as served:
        yield served


def recording(site: Served, text: str) -> bytes:
    """Return a WAV file of the voice, which says the text."""
    body = {"model": "speech-demo", "input": text, "voice": "heart", "response_format": "wav"}
    reply = site.request("POST", "/v1/audio/speech", body)
    assert reply.status == 200
    return reply.response.read()


def test_a_spoken_question_is_answered_in_speech(site: Served) -> None:
    question = recording(site, "What is the capital of Japan?")
    with wave.open(BytesIO(question)) as sound:
        assert sound.getframerate() * 2 == RATE and 1 < sound.getnframes() / sound.getframerate() < 5
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(question).decode(), "format": "wav"}}
    body = {
        "messages": [{"role": "user", "content": [part]}], "max_tokens": 40, "temperature": 0,
        "modalities": ["text", "audio"], "audio": {"voice": "heart", "format": "wav"},
    }  # fmt: skip
    answer = site.request("POST", "/v1/chat/completions", body).json()
    audio = answer["choices"][0]["message"]["audio"]
    assert "Tokyo" in audio["transcript"]
    with wave.open(BytesIO(base64.b64decode(audio["data"]))) as sound:
        assert sound.getnframes() / sound.getframerate() > 1


@pytest.mark.parametrize(
    ("worker", "texts", "sounds"),
    [("decode:0", 3, 0), ("speaker:0", 12, 1), ("prefill:0", 1, 0), ("speaker:0", 1, 0), ("decode:0", 12, 1)],
)
def test_the_story_is_the_same_when_a_worker_dies(site: Served, worker: str, texts: int, sounds: int) -> None:
    """E15, E16: no clause twice and none missing."""
    salts = iter((f"calm {worker} {texts}", f"harmed {worker} {texts}"))
    calm = speak(site, STORY, cache_salt=next(salts), **ASKED)
    assert len(calm.sound) > 2 * RATE and calm.usage["completion_tokens"] > 20
    before = settled(site)
    victim = site.living(worker)
    killed: list[psutil.Process] = []

    def harm(heard: int, played: int) -> None:
        if not killed and heard >= texts and played >= sounds:
            killed.append(victim)
            victim.kill()

    assert speak(site, STORY, harm, cache_salt=next(salts), **ASKED) == calm
    assert killed, "the worker died while the answer was on its way"
    site.living(worker, after=victim.pid)
    assert settled(site).free_blocks == before.free_blocks
