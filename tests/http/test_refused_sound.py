# SPDX-License-Identifier: Apache-2.0
"""Requests for sound that are refused: each in a sentence that names the parameter."""

from typing import Any

import pytest
from scripted_site import ScriptedSite
from scripted_speech import RECORDING, form

PART = {"type": "input_audio", "input_audio": {"data": "UklGRgAAAABXQVZF", "format": "wav"}}


def content(**changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [PART | {"input_audio": PART["input_audio"] | changes}]}]}  # type: ignore[operator]


PNG = "data:image/png;base64,iVBORw0KGgo="
IMAGE_PLACE = "messages[0].content[0].image_url.url"


def shown(role: str = "user", **fields: Any) -> dict[str, Any]:
    part = {"type": "image_url", **({"image_url": fields} if fields else {})}
    return {"messages": [{"role": role, "content": [part]}]}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"modalities": ["video"]}, "modalities", "must be a list of text and audio"),
        ({"modalities": []}, "modalities", "must name one or both"),
        ({"modalities": ["text"] * 3}, "modalities", "must name one or both"),
        ({"modalities": "audio"}, "modalities", "must be a list"),
        ({"modalities": [{}]}, "modalities", "must be a list"),
        ({"modalities": ["audio"], "audio": {"format": "mp3"}}, "audio.format", "must be one of wav, pcm16"),
        ({"modalities": ["audio"], "audio": {"voice": ""}}, "audio.voice", "must have 1 to 64 characters"),
        ({"modalities": ["audio"], "audio": 3}, "audio", "must be an object"),
        ({"modalities": ["audio"], "n": 2}, "n", "one choice"),
        (content(format="mp3"), "messages[0].content[0].input_audio.format", '"wav", the only format that is read'),
        (content(data="a"), "messages[0].content[0].input_audio.data", "must be base64"),
        (content(data="UklGRg==\n"), "messages[0].content[0].input_audio.data", "must be base64"),
        (content(data="é"), "messages[0].content[0].input_audio.data", "must be base64"),
        (content(data=""), "messages[0].content[0].input_audio.data", "is empty"),
        (content(data="SUQzBAAA"), "messages[0].content[0].input_audio.data", "is MP3: convert it to WAV first"),
        (content(data="AAAA"), "messages[0].content[0].input_audio.data", "is no WAV file"),
        ({"messages": [{"role": "system", "content": [PART]}]}, "messages[0].content[0].type", "messages of the user"),
        ({"messages": [{"role": "user", "content": [PART] * 17}]}, "messages[0].content", "at most 16 may be"),
        ({"messages": [{"role": "user", "content": [PART] * 9}] * 2}, "messages", "18 recordings and images"),
        (shown(), "messages[0].content[0].image_url", "is missing"),
        (shown(url="https://example.com/a.png"), IMAGE_PLACE, "an address on the network, and this server fetches"),
        (shown(url="HTTP://x/a.png"), IMAGE_PLACE, "an address on the network"),
        (shown(url="file:///etc/passwd"), IMAGE_PLACE, "no data URL"),
        (shown(url="data:image/png,abc"), IMAGE_PLACE, "no data URL"),
        (shown(url="data:image/png;base64,a"), IMAGE_PLACE, "must be base64"),
        (shown(url="data:image/gif;base64,R0lGODlh"), IMAGE_PLACE, "no PNG or JPEG"),
        (shown(url=PNG, detail="high"), "messages[0].content[0].image_url.detail", "not supported"),
        (shown(url=PNG), IMAGE_PLACE, "sees none"),
        (shown("assistant", url=PNG), "messages[0].content[0].type", "messages of the user"),
        (
            {"messages": [{"role": "assistant", "content": "a", "audio": {"id": "audio_1"}}]},
            "messages[0].audio", "send its transcript as content",
        ),
    ],
)  # fmt: skip
def test_what_a_chat_may_not_ask_is_refused(
    sounds: ScriptedSite, fields: dict[str, Any], param: str, says: str
) -> None:
    answer = sounds.chat(**fields)
    assert answer.status == 400, answer.body
    assert answer.json["error"]["param"] == param and says in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"), ({"input": " "}, "input"), ({"input": "a" * 40000}, "input"), ({"input": 3}, "input"),
        ({"input": "a", "response_format": "mp3"}, "response_format"), ({"input": "a", "speed": 2}, "speed"),
        ({"input": "a", "stream_format": "sse"}, "stream_format"), ({"input": "a", "voice": {"id": "v"}}, "voice"),
    ],
)  # fmt: skip
def test_what_speech_may_not_ask_is_refused(sounds: ScriptedSite, fields: dict[str, Any], param: str) -> None:
    answer = sounds.ask("POST", "/v1/audio/speech", fields)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("parts", "status", "says"),
    [
        ({}, 400, "file is missing"),
        ({"file": "text"}, 400, "give its part a filename"),
        ({"file": b"ID3"}, 400, "file is MP3"),
        ({"file": b""}, 400, "file is empty"),
        ({"file": RECORDING, "response_format": "srt"}, 400, "response_format must be one of json, text"),
        ({"file": RECORDING, "stream": "true"}, 400, "stream is not supported"),
        ({"file": RECORDING, "model": "nobody"}, 404, "there is no model"),
        ({"file": RECORDING, "headers": {"origin": "https://a.example"}}, 415, "forms from pages are not taken"),
        ({"file": RECORDING, "headers": {"content-type": "application/json"}}, 415, "send multipart/form-data"),
        ({"file": RECORDING, "headers": {"content-encoding": "gzip"}}, 415, "send it plain"),
        (
            {"file": RECORDING, "headers": {"content-type": "multipart/form-data; boundary=b1"}},
            400,
            "no whole multipart",
        ),
    ],
)
def test_what_transcriptions_may_not_ask_is_refused(
    sounds: ScriptedSite, parts: dict[str, Any], status: int, says: str
) -> None:
    answer = form(sounds, **parts)
    assert answer.status == status and says in answer.json["error"]["message"], answer.body


def test_a_model_of_text_refuses_sound_by_name(pair: ScriptedSite) -> None:
    asked = {
        "modalities": pair.chat(modalities=["text", "audio"]),
        "input": pair.ask("POST", "/v1/audio/speech", {"input": "a"}),
        "messages[0].content[0].input_audio.data": pair.chat(**content()), "file": form(pair, file=RECORDING),
    }  # fmt: skip
    for param, answer in asked.items():
        assert answer.status == 400 and answer.json["error"]["param"] == param, answer.body
        assert answer.json["error"]["code"] == "unsupported_parameter"
        assert "'tiny'" in answer.json["error"]["message"] and "speech-demo" in answer.json["error"]["message"]
    assert pair.chat(modalities=["text"], audio={"voice": "a", "format": "wav"}).headers["x-pontil-ignored"] == "audio"
