# SPDX-License-Identifier: Apache-2.0
"""Chat replies in sound, as OpenAI has them: `audio` in place of `content`, with the text as its transcript.

In a stream the transcript comes as it is generated and the samples as they are made; the finish reason comes last, as
the sound ends after the text.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pontil.http.fields.audio_output import AudioOutput
from pontil.http.openai.chat.parsed_shape import FunctionCallShape, ParsedChatShape
from pontil.http.openai.sound.sound_reply import SoundPieces, samples, whole_sound
from pontil.http.stream.reply_shape import ChatShape, ReplyChoice, stop_note
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.grammar.processes.verdict import Verdict
from pontil.runtime.proxy.requests.answer import ChoiceEvent, Delta, Ended
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.stages.graph.catalog import GraphModel
from pontil.runtime.stages.runs.stream import RunStream

QUIET = b',"logprobs":null,"finish_reason":null'


class SpokenForm(ChatShape):
    """The parts that a spoken reply has otherwise than a written one."""

    def __init__(self, *made: Any, wanted: AudioOutput, sample_rate: int) -> None:
        super().__init__(*made)
        self.wanted, self.sample_rate = wanted, sample_rate
        self.pieces = SoundPieces(wanted.form)
        self.audio_id = f"audio_{secrets.token_hex(12)}"
        # Stands for the base64 until the answer is written: nobody else knows this name by then.
        self.mark = f"<{secrets.token_hex(16)}>"
        self.ended: Ended | None = None

    @property
    def expires_at(self) -> int:
        """The time of the answer: a sound is not kept, so later requests cannot name it."""
        return int(self.base["created"])

    def opening(self, index: int, request: Request, usage: Usage | None = None) -> bytes:
        audio = json.dumps({"id": self.audio_id, "transcript": self.shown.continued}).encode()
        opening_chunk = super().opening(index, request, usage)
        content_field = b'"content":' + json.dumps(self.shown.continued).encode()
        return opening_chunk.replace(content_field, b'"content":null,"audio":' + audio, 1)

    def delta(self, index: int, text: bytes, reason: bytes, logprobs: bytes = b"null") -> bytes:
        return b'{"index":%d,"delta":{"audio":{"transcript":%b}},"logprobs":%b,"finish_reason":%b' % (
            index,
            text,
            logprobs,
            reason,
        )

    def events(self, stream: Stream, choice_events: Sequence[ChoiceEvent]) -> bytes:
        text_chunks = super().events(stream, choice_events)
        assert isinstance(stream, RunStream)
        deltas = samples(stream.drain_audio())
        if not deltas:
            return text_chunks
        usage = stream.usage if self.delivery.continuous_usage else None
        lead = b"" if 0 in self.opened else self.open(stream, 0, usage)
        base64_audio = self.pieces.take(self.pieces.head(self.sample_rate)) + b"".join(
            self.pieces.take(audio_delta.data) for audio_delta in deltas
        )
        return text_chunks + lead + (self.sound_chunk(base64_audio, usage) if base64_audio else b"")

    def event(self, stream: Stream, index: int, choice_event: Delta | Ended) -> bytes:
        """Hold the end of the text until that of the sound."""
        if isinstance(choice_event, Ended) and self.schema_watch is None:
            self.ended = choice_event
            usage = stream.usage if self.delivery.continuous_usage else None
            return b"" if index in self.opened else self.open(stream, index, usage)
        return super().event(stream, index, choice_event)

    def end(self, stream: Stream, verdicts: Mapping[int, Verdict]) -> bytes:
        usage = stream.usage if self.delivery.continuous_usage else None
        last_audio = self.pieces.take(self.pieces.head(self.sample_rate)) + self.pieces.finish()
        sound = self.sound_chunk(last_audio, usage) if last_audio else b""
        last = b'{"index":0,"delta":{"audio":{"expires_at":%d}}' % self.expires_at
        closing = b"" if self.ended is None else self.last_chunk(0, self.ended.reason, usage, stop_note(self.ended))
        return sound + self.framed(last + QUIET, (), usage) + closing + super().end(stream, verdicts)

    def sound_chunk(self, base64_audio: bytes, usage: Usage | None) -> bytes:
        return self.framed(b'{"index":0,"delta":{"audio":{"data":"%b"}}' % base64_audio + QUIET, (), usage)

    def choice(self, index: int, choice: ReplyChoice) -> dict[str, Any]:
        choice_object = super().choice(index, choice)
        message = choice_object["message"]
        message["audio"] = {
            "id": self.audio_id,
            "data": self.mark,
            "expires_at": self.expires_at,
            "transcript": message["content"] or "",
        }
        message["content"] = None
        return choice_object

    async def written(self, stream: RunStream, answer: Mapping[str, Any]) -> bytes:
        """Return the body of a whole answer. Its sound is never handled as text."""
        before, _, after = json.dumps(answer, ensure_ascii=False).encode().partition(self.mark.encode())
        return b"".join([before, *await whole_sound(stream, self.wanted.form, self.sample_rate), after])

    def usage(self, usage: Usage) -> dict[str, Any]:
        usage_fields = super().usage(usage)
        details = usage_fields["completion_tokens_details"]
        return usage_fields | {
            "completion_tokens_details": details | {"text_tokens": usage.completion_tokens - usage.audio_tokens}
        }


class SpokenChatShape(SpokenForm):
    """A spoken reply whose text is not parsed."""


class SpokenParsedShape(SpokenForm, ParsedChatShape):
    """A spoken reply with reasoning and tool calls apart from the text."""


class SpokenFunctionShape(SpokenForm, FunctionCallShape):
    """The same with calls in their older form."""


SPOKEN: Mapping[type[ChatShape], Callable[..., SpokenForm]] = {
    ChatShape: SpokenChatShape,
    ParsedChatShape: SpokenParsedShape,
    FunctionCallShape: SpokenFunctionShape,
}


def spoken_form(
    form: type[ChatShape], audio_output: AudioOutput | None, graph: GraphModel | None
) -> Callable[..., ChatShape]:
    """Return the form of a reply, in sound where that was asked for and can be."""
    if audio_output is None or graph is None:
        return form
    return partial(SPOKEN[form], wanted=audio_output, sample_rate=graph.sample_rate)
