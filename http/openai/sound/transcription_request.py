# SPDX-License-Identifier: Apache-2.0
"""Parser of /v1/audio/transcriptions: from a form to a frozen request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pontil.http.fields.recording import Recording, check_wav
from pontil.http.intake.multipart import FormPart
from pontil.http.schema.parameter import Parameter, ParameterTable, Schema
from pontil.http.schema.parameter_types import InertType, NeutralType, ShapedType, TextType, WordType
from pontil.http.schema.reader import Fields, IgnoredFields

JSON, TEXT = FORMATS = ("json", "text")


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """A request for the text of a recording."""

    model: str | None
    recording: Recording = field(repr=False)
    as_text: bool


def read_transcription(
    parts: Mapping[str, FormPart], vocab_size: int = 0, ignored: IgnoredFields | None = None
) -> TranscriptionRequest:
    """Parse the request. Raises RequestError, naming the parameter, for anything invalid."""
    fields = Fields({name: value_of(part) for name, part in parts.items()}, ignored=ignored)
    values = TABLE.read(fields)
    recording = Recording(values["file"], "file")
    check_wav(recording.data, "file")
    return TranscriptionRequest(values["model"], recording, values["response_format"] == TEXT)


def value_of(part: FormPart) -> Any:
    """Return a part's text, or the bytes of a file and of what is no text."""
    return part.data if part.text is None else part.text


def read_file(fields: Fields, name: str) -> bytes:
    value = fields.take(name)
    if not isinstance(value, bytes):
        raise fields.wrong(name, "must be a file: give its part a filename")
    return value


FILE_SCHEMA: Schema = {"title": "a WAV file", "type": "string", "contentMediaType": "audio/wav"}


TRANSCRIPTION = (
    Parameter("file", ShapedType(read_file, FILE_SCHEMA), "the recording", required=True),
    Parameter("model", TextType(), "the name of a model that is served; absent: the first one"),
    Parameter("response_format", WordType(FORMATS), "an object with the text, or the text alone", JSON),
    Parameter("language", InertType(TextType(), ("",)), "the language that is spoken"),
    Parameter("prompt", InertType(TextType(), ("",)), "words that may occur"),
    Parameter("temperature", InertType(TextType(), ("", "0", "0.0")), "how freely words are chosen"),
    Parameter("stream", NeutralType(("false",)), "send the text as events"),
)
TABLE = ParameterTable(TRANSCRIPTION)
