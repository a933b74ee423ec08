# SPDX-License-Identifier: Apache-2.0
"""The nodes of speech: a recording to text, and text to sound."""

import codecs
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.nodes.clauses import Clauses
from pontil.runtime.stages.nodes.node import AUDIO, NOTHING, TEXT, NodeInput, NodeRun, Pieces, TaskInput
from pontil.runtime.stages.nodes.recognizer import Transcript
from pontil.runtime.stages.nodes.wav import Sound, read_wav

# Bytes of a long text that are cut into clauses in one piece of work.
SLICE: Final = 4096


class Transcriber(Protocol):
    """Something that understands speech."""

    def parts(self, sound: Sound) -> Iterator[Transcript]: ...


class Voice(Protocol):
    """A voice: the same text has the same samples. Text without phonemes has no sound."""

    @property
    def rate(self) -> int: ...

    def phonemes(self, piece: str) -> list[str]: ...

    def say(self, phonemes: Sequence[str]) -> bytes: ...


class RecognizerNode:
    """Makes the text of a WAV file."""

    kind, sample_rate, one_per_chunk = TEXT, None, False

    def __init__(self, transcriber: Transcriber, identity: str) -> None:
        self.transcriber, self.identity = transcriber, identity

    def begin(self, task: TaskInput) -> NodeRun:
        if not task.data:
            raise RequestError("there is no recording: send a WAV file", param="input_audio")
        return Recognition(self.transcriber, task.data)


class Recognition:
    """One recording. An output is the text of one window of it that has any."""

    def __init__(self, transcriber: Transcriber, data: bytes) -> None:
        self.transcriber, self.data = transcriber, data

    def feed(self, given: NodeInput) -> Pieces:
        gap = ""
        for part in self.transcriber.parts(read_wav(self.data)):
            yield f"{gap}{part.text}".encode() if part.text else None
            gap = " " if part.text else gap
        return NOTHING


class SpeakerNode:
    """Speaks text: one output for each sentence or clause that has any sound."""

    kind, one_per_chunk = AUDIO, False

    def __init__(self, voice: Voice, identity: str) -> None:
        self.voice, self.identity = voice, identity

    @property
    def sample_rate(self) -> int:
        return self.voice.rate

    def begin(self, task: TaskInput) -> NodeRun:
        return Speech(self.voice, task.delivered, task.data or b"")


class Speech:
    """One text being spoken: `data`, and then the items. Both are bytes of UTF-8, which may be cut anywhere."""

    def __init__(self, voice: Voice, delivered: int, data: bytes) -> None:
        self.voice, self.delivered, self.data = voice, delivered, data
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.clauses = Clauses()
        self.made = 0

    def feed(self, given: NodeInput) -> Pieces:
        items, _ = given.of("text")
        data, self.data = self.data + b"".join(item.tobytes() for item in items), b""
        for start in range(0, len(data), SLICE):
            for piece in self.clauses.feed(self.decoder.decode(data[start : start + SLICE])):
                yield self.spoken(piece)
        if given.final:
            for piece in self.clauses.feed(self.decoder.decode(b"", True)) + self.clauses.finish():
                yield self.spoken(piece)
        return NOTHING

    def spoken(self, piece: str) -> bytes | None:
        """Return the samples of a piece; None for one without a sound, which has no number."""
        phonemes = self.voice.phonemes(piece)
        if not phonemes:
            return None
        self.made += 1
        return b"" if self.made <= self.delivered else self.voice.say(phonemes)


def identity_of(path: Path) -> str:
    """Return a hash of a node's files by their names and sizes; the files themselves are pinned where they come
    from."""
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    facts = "\n".join(f"{file.name} {file.stat().st_size}" for file in files)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]
