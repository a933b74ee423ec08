# SPDX-License-Identifier: Apache-2.0
"""Chats that are answered in sound: streamed, with something that happens on the way."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from served import Served

NOTHING: Callable[[int, int], None] = lambda texts, sounds: None  # noqa: E731


@dataclass(frozen=True)
class Spoken:
    """An answer: its text, its samples, the usage, and why it ended."""

    text: str
    sound: bytes
    usage: dict[str, Any]
    reason: str


def speak(served: Served, text: str, on_event: Callable[[int, int], None] = NOTHING, **fields: Any) -> Spoken:
    """Ask for a spoken answer. `on_event` is called with the number of pieces of text and of sound so far."""
    body = {
        "messages": [{"role": "user", "content": text}], "modalities": ["text", "audio"],
        "audio": {"voice": "ethan", "format": "pcm16"}, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    reply = served.request("POST", "/v1/chat/completions", body | fields)
    assert reply.status == 200, reply.text()
    said, sound, reason = "", b"", ""
    usage: dict[str, Any] = {}
    texts = sounds = 0
    for event in reply.events():
        if event == "[DONE]":
            assert usage and reason
            return Spoken(said, sound, usage, reason)
        chunk = json.loads(event)
        assert "error" not in chunk, chunk
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            reason = choice["finish_reason"] or reason
            audio = choice["delta"].get("audio") or {}
            said += audio.get("transcript", "")
            sound += base64.b64decode(audio.get("data", ""))
            texts += "transcript" in audio
            sounds += bool(audio.get("data"))
        on_event(texts, sounds)
    raise AssertionError("the stream ended without [DONE]")
