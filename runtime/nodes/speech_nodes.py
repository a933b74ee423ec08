# SPDX-License-Identifier: Apache-2.0
"""The nodes of speech: a recording to text, and text to sound."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from pontil.runtime.errors import RequestError
from pontil.runtime.nodes.clauses import Clauses
from pontil.runtime.nodes.node import NodeInput, NodeResult, NodeRun
from pontil.runtime.nodes.recognizer import Recognizer

TEXT, AUDIO = "text", "audio"


class Voice(Protocol):
    """A voice: the same text has the same samples."""

    @property
    def rate(self) -> int: ...

    def speak(self, piece: str) -> bytes: ...


class RecognizerNode:
    """Makes the text of a WAV file."""

    def __init__(self, recognizer: Recognizer, identity: str) -> None:
        self.recognizer, self.identity = recognizer, identity

    def begin(self, task: NodeInput) -> NodeRun:
        if not task.data:
            raise RequestError("there is no recording: send a WAV file", param="input_audio")
        return Recognition(self.recognizer, task.data)


class Recognition:
    def __init__(self, recognizer: Recognizer, data: bytes) -> None:
        self.recognizer, self.data = recognizer, data

    def feed(
        self, items: Sequence[NDArray[Any]], context: Sequence[NDArray[Any]], final: bool
    ) -> list[NodeResult | None]:
        return [NodeResult(TEXT, self.recognizer.recognize(self.data).text.encode())]


class SpeakerNode:
    """Speaks text: one output for each sentence or clause that has any sound."""

    def __init__(self, voice: Voice, identity: str) -> None:
        self.voice, self.identity = voice, identity

    def begin(self, task: NodeInput) -> NodeRun:
        return Speech(self.voice, task.delivered, task.data)


class Speech:
    """One text being spoken. Items are bytes of UTF-8, which may be cut anywhere. `data` is a whole text, instead of
    items. An output stands for one clause, also for one without a sound."""

    def __init__(self, voice: Voice, delivered: int, data: bytes | None) -> None:
        self.voice, self.delivered, self.data = voice, delivered, data
        self.clauses = Clauses()
        self.made = 0

    def feed(
        self, items: Sequence[NDArray[Any]], context: Sequence[NDArray[Any]], final: bool
    ) -> list[NodeResult | None]:
        text = (self.data or b"") + b"".join(item.tobytes() for item in items)
        self.data = None
        pieces = self.clauses.feed(text.decode(errors="replace"))
        if final:
            pieces += self.clauses.finish()
        return [self.spoken(piece) for piece in pieces]

    def spoken(self, piece: str) -> NodeResult | None:
        self.made += 1
        if self.made <= self.delivered:
            return None
        return NodeResult(AUDIO, self.voice.speak(piece), self.voice.rate)


def identity_of(path: Path) -> str:
    """Return a hash of a node's files by their names and sizes; the files themselves are pinned where they come
    from."""
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    facts = "\n".join(f"{one.name} {one.stat().st_size}" for one in files)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]
