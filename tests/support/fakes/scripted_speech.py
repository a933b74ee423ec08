# SPDX-License-Identifier: Apache-2.0
"""A scripted speech pipeline: a recognizer, a model that answers, and a speaker, each without a model."""

from collections.abc import Iterator
from typing import Any

from scripted_site import HttpAnswer, ScriptedSite
from scripted_worker import ScriptedWorker, output

from pontil.runtime.foundation.wav_header import wav_header
from pontil.runtime.wire.messages import Message, NodeTask

RATE = 24000
# Pieces whose lengths are no multiples of three bytes.
PIECES = (bytes(range(10)) * 7, b"\1\2" * 500, b"\3\4")
SOUND = b"".join(PIECES)
SAID = "Hello 😀 world"
RECORDING = wav_header(16000, 4) + b"\0\0\1\1"


def speaks(worker: ScriptedWorker, task: NodeTask) -> Iterator[Message]:
    """Make the same sound of everything."""
    for index, piece in enumerate(PIECES):
        yield output(worker, task, index, "audio", piece, sample_rate=RATE)
    yield output(worker, task, len(PIECES), "audio", b"", final=True, sample_rate=RATE)


def hears(worker: ScriptedWorker, task: NodeTask) -> Iterator[Message]:
    """Recognise the size of a recording."""
    yield output(worker, task, 0, "text", f"I said {len(task.data or b'')} bytes".encode(), final=True)


def node(made: ScriptedSite, name: str, computer: Any) -> ScriptedWorker:
    return made.worker(
        f"{name}:0", role="node", node=name, computer=computer, model=name, model_fingerprint=name, kv_fingerprint=""
    )


def demo(made: ScriptedSite, speaker: Any = speaks) -> tuple[ScriptedWorker, ScriptedWorker, ScriptedWorker]:
    """Start the three stages of the speech pipeline."""
    llm = made.worker("mixed:0", text=SAID, node="llm")
    return llm, node(made, "recognizer", hears), node(made, "speaker", speaker)


def form(made: ScriptedSite, headers: dict[str, str] | None = None, **parts: str | bytes) -> HttpAnswer:
    body = b""
    for name, value in parts.items():
        file = '; filename="x.wav"' if isinstance(value, bytes) else ""
        data = value if isinstance(value, bytes) else value.encode()
        body += f'--b0\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + data + b"\r\n"
    kind = {"content-type": "multipart/form-data; boundary=b0"}
    return made.ask("POST", "/v1/audio/transcriptions", body + b"--b0--\r\n", kind | (headers or {}))
