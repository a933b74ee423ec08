# SPDX-License-Identifier: Apache-2.0
"""Parser of /v1/audio/speech: from JSON to a frozen request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.http.fields.audio_output import MOST_VOICE, Form
from pontil.http.fields.prompt import MAX_PRIORITY, PromptFields
from pontil.http.schema.parameter import Parameter, ParameterTable
from pontil.http.schema.parameter_types import (
    FlagType,
    InertType,
    IntegerType,
    NeutralType,
    TextType,
    WordType,
)
from pontil.http.schema.reader import Fields, IgnoredFields

# Eight times as many as OpenAI takes: some ten minutes of speech.
MOST_CHARACTERS = 32768
WAV, PCM = FORMATS = ("wav", "pcm")


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """A request for the sound of a text. `voice` None: the model's own; `seed` None: any."""

    model: str | None
    text: str
    voice: str | None
    form: Form
    stream: bool
    seed: int | None
    handling: PromptFields


def read_speech(data: Mapping[str, Any], vocab_size: int = 0, ignored: IgnoredFields | None = None) -> SpeechRequest:
    """Parse the request. Raises RequestError, naming the parameter, for anything invalid."""
    fields = Fields(data, vocab_size=vocab_size, ignored=ignored)
    values = TABLE.read(fields)
    if not values["input"].strip():
        raise fields.wrong("input", "is empty: give a text to speak")
    handling = PromptFields(False, None, "", values["priority"])
    form: Form = "pcm16" if values["response_format"] == PCM else "wav"
    return SpeechRequest(
        values["model"], values["input"], values["voice"], form, values["stream"], values["seed"], handling
    )


SPEECH = (
    Parameter("model", TextType(), "the name of a model that is served; absent: the first one"),
    Parameter("input", TextType(0, MOST_CHARACTERS), "the text to speak", required=True),
    Parameter("voice", TextType(1, MOST_VOICE), "whose voice, of a model that has several; absent: the first"),
    Parameter("response_format", WordType(FORMATS), "a WAV file, or bare samples of 16 bits", WAV),
    Parameter("stream", FlagType(), "send the sound while it is made; a WAV file then states no length", False),
    Parameter(
        "seed",
        IntegerType(-(1 << 63), (1 << 63) - 1),
        "the same seed speaks a text the same, where a model draws what it says; absent: one is minted",
    ),
    Parameter("priority", IntegerType(-MAX_PRIORITY, MAX_PRIORITY), "who waits for a worker: the lowest goes first", 0),
    Parameter("instructions", InertType(TextType(), ("",)), "how to speak"),
    Parameter("speed", NeutralType((1,)), "another speed"),
    Parameter("stream_format", NeutralType(("audio",)), "events in place of the sound itself"),
)
TABLE = ParameterTable(SPEECH)
