# SPDX-License-Identifier: Apache-2.0
"""Parameters of a chat that ask for an answer in sound."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pontil.http.schema.parameter import Parameter, Schema
from pontil.http.schema.parameter_types import OptionsType, ShapedType, TextType, WordType
from pontil.http.schema.reader import Fields

TEXT, AUDIO = KINDS = ("text", "audio")
FORMATS = ("wav", "pcm16")
Form = Literal["wav", "pcm16"]
MOST_VOICE = 64


@dataclass(frozen=True, slots=True)
class AudioOutput:
    """A wish for sound beside the text. `voice` None: the model's own. The `form` is a WAV file, or bare samples of 16
    bits."""

    voice: str | None
    form: Form


def read_kinds(fields: Fields, name: str) -> tuple[str, ...]:
    """Return the kinds of output, each once."""
    value = fields.take(name)
    if not isinstance(value, list):
        raise fields.typed(name, value, f"a list of {' and '.join(KINDS)}")
    for kind in value[: len(KINDS) + 1]:
        if kind not in KINDS:
            raise fields.unfit(name, kind, f"a list of {' and '.join(KINDS)}", "unsupported_parameter")
    if not value or len(value) > len(KINDS):
        raise fields.wrong(name, f"must name one or both of {' and '.join(KINDS)}, each once")
    return tuple(value)


KINDS_SCHEMA: Schema = {
    "title": "`text`, or `text` and `audio`",
    "type": "array",
    "items": {"enum": list(KINDS)},
    "minItems": 1,
    "maxItems": len(KINDS),
}


AUDIO_OPTIONS = (
    Parameter("voice", TextType(1, MOST_VOICE), "whose voice, of a model that has several; absent: the first"),
    Parameter("format", WordType(FORMATS), "a WAV file, or bare samples of 16 bits; absent: wav, of a stream pcm16"),
)
AUDIO_OUTPUT = (
    Parameter("modalities", ShapedType(read_kinds, KINDS_SCHEMA), "whether the answer comes in sound too"),
    Parameter("audio", OptionsType(AUDIO_OPTIONS), "of the sound"),
)


def audio_output(fields: Fields, values: Mapping[str, Any]) -> AudioOutput | None:
    """Return the wish for sound, if there is one. Options of a sound that nobody asked for have no effect."""
    if AUDIO not in (values["modalities"] or ()):
        fields.without_effect("audio")
        return None
    options = values["audio"] or {}
    form: Form = options.get("format") or ("pcm16" if values["stream"] else "wav")
    return AudioOutput(options.get("voice"), form)
