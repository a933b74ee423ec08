# SPDX-License-Identifier: Apache-2.0
"""The tables of parameters in docs/guide/api.md, responses.md, messages.md, ollama.md, embeddings.md and audio.md,
generated from the declarations. Run as a program it prints them."""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pontil.http.anthropic.request import MESSAGES
from pontil.http.fields.client_fields import FOREIGN
from pontil.http.fields.delivery import STREAM_OPTIONS
from pontil.http.ollama import embed, request
from pontil.http.ollama.options import OPTIONS
from pontil.http.openai.chat.request import CHAT
from pontil.http.openai.completions.request import COMPLETION, OF_CHATS
from pontil.http.openai.embeddings.route import EMBEDDING
from pontil.http.openai.responses.request import RESPONSES
from pontil.http.openai.sound.speech_request import SPEECH
from pontil.http.openai.sound.transcription_request import TRANSCRIPTION
from pontil.http.schema.parameter import Parameter
from pontil.http.schema.parameter_types import InertType, NeutralType
from pontil.http.vllm.chat_batch import CHAT_BATCH
from pontil.http.vllm.pair_request import RERANK, SCORE

VOCABULARY = 1000
SAID = ("yes", "no effect", "not supported")
RESPONSES_HEAD = ("| parameter | effect | values | default | what it does |", "|---|---|---|---|---|")
HEAD = ("| parameter | completions | chat | values | default | what it does |", "|---|---|---|---|---|---|")


def table() -> list[str]:
    """Return one row for each parameter of either endpoint, but for those of other servers; supported ones first, then
    those without effect."""
    names = list(dict.fromkeys(one.name for one in (*COMPLETION, *CHAT) if one.name not in FOREIGN))
    pairs = [(find(name, COMPLETION, OF_CHATS), find(name, CHAT, ("prompt",))) for name in names]
    pairs.sort(key=lambda pair: min(SAID.index(said(one)) for one in pair if one))
    return [*HEAD, *(line for pair in pairs for line in rows(*pair))]


def responses_table() -> list[str]:
    """Return one row for each parameter of a response, but for those of other servers; in the same order."""
    return one_table(RESPONSES)


def messages_table() -> list[str]:
    """Return one row for each parameter of a message, but for those of other servers; in the same order."""
    return one_table(MESSAGES)


def ollama_tables() -> list[list[str]]:
    """Return the tables of Ollama's requests: a chat, what a prompt has otherwise, the options, and vectors."""
    generate = [one for one in request.GENERATE if one not in request.CHAT]
    return [one_table(one) for one in (request.CHAT, generate, OPTIONS, embed.EMBED)]


def embeddings_table() -> list[str]:
    """Return one row for each parameter of a request for vectors, in the same order."""
    return one_table(EMBEDDING)


def rerank_table() -> list[str]:
    """Return one row for each parameter of a request to rank documents, in the same order."""
    return one_table(RERANK)


def score_table() -> list[str]:
    """Return one row for each parameter of a request for scores, in the same order."""
    return one_table(SCORE)


def speech_table() -> list[str]:
    """Return one row for each parameter of a text that is to be spoken, in the same order."""
    return one_table(SPEECH)


def transcription_table() -> list[str]:
    """Return one row for each parameter of a recording that is to be transcribed, in the same order."""
    return one_table(TRANSCRIPTION)


def batch_table() -> list[str]:
    """Return one row for each parameter that a batch of chats has otherwise than a chat, in the same order."""
    return one_table([one for one in CHAT_BATCH if one not in CHAT])


def one_table(parameters: Sequence[Parameter]) -> list[str]:
    shown = sorted(
        (one for one in parameters if one.name not in FOREIGN or supported(one)),
        key=lambda one: SAID.index(said(one)),
    )
    cells = [(f"`{one.name}`", said(one), values(one), default(one), one.says) for one in shown]
    return [*RESPONSES_HEAD, *(f"| {' | '.join(row)} |" for row in cells)]


def foreign() -> str:
    """Return the names of other servers' parameters."""
    return ", ".join(f"`{name}`" for name in FOREIGN)


def find(name: str, parameters: tuple[Parameter, ...], elsewhere: Collection[str]) -> Parameter | None:
    return next((one for one in parameters if one.name == name and name not in elsewhere), None)


def supported(parameter: Parameter) -> bool:
    return not isinstance(parameter.kind, NeutralType)


def rows(completion: Parameter | None, chat: Parameter | None) -> Iterator[str]:
    """Yield one row, or one for each endpoint where they differ; a parameter inside another has its path."""
    if completion is not None and chat is not None and facts(completion) == facts(chat):
        yield row(completion, said(completion), said(chat))
    else:
        if completion is not None:
            yield row(completion, said(completion), "see below" if chat else absent(completion.name))
        if chat is not None:
            yield row(chat, "see above" if completion else absent(chat.name), said(chat))
    if completion is not None and completion.name == "stream_options":
        for option in STREAM_OPTIONS:
            yield row(option, said(option), said(option), "stream_options.")


def absent(name: str) -> str:
    """Describe a parameter that only the other endpoint has."""
    return "refused" if name in (*OF_CHATS, "prompt") else "no effect"


def facts(parameter: Parameter) -> tuple[str, ...]:
    return values(parameter), default(parameter), parameter.says


def said(parameter: Parameter) -> str:
    return SAID[0 if supported(parameter) else 2] if not isinstance(parameter.kind, InertType) else SAID[1]


def row(parameter: Parameter, completions: str, chat: str, path: str = "") -> str:
    name = f"`{path}{parameter.name}`"
    return f"| {' | '.join((name, completions, chat, values(parameter), default(parameter), parameter.says))} |"


def default(parameter: Parameter) -> str:
    if parameter.required:
        return "required"
    return "–" if parameter.default in (None, (), "", {}) else f"`{json.dumps(parameter.default)}`"


def values(parameter: Parameter) -> str:
    if not supported(parameter):
        allowed = parameter.kind.schema(VOCABULARY)["enum"]
        return " or ".join(f"`{json.dumps(value)}`" for value in [*allowed, None]) + " only"
    return words(parameter.kind.schema(VOCABULARY))


def words(schema: dict[str, Any]) -> str:
    """Describe a schema in words."""
    if "title" in schema:
        return str(schema["title"])
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    kind = schema["type"]
    if kind in ("integer", "number"):
        return ", ".join([kind, *bounds(schema)])
    if kind == "string":
        return f"{schema['minLength']} to {schema['maxLength']} characters" if "maxLength" in schema else "text"
    if kind == "array":
        return f"token ids, at most {schema['maxItems']}"
    return {"boolean": "true or false", "object": "object"}[kind]


def bounds(schema: dict[str, Any]) -> Iterator[str]:
    shown = {name: f"{schema[name]:g}" if isinstance(schema[name], float) else str(schema[name])
             for name in ("minimum", "exclusiveMinimum", "maximum") if name in schema}  # fmt: skip
    if "minimum" in shown and "maximum" in shown:
        yield f"{shown['minimum']} to {shown['maximum']}"
        return
    labels = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
    yield from (f"{labels[name]} {value}" for name, value in shown.items())


if __name__ == "__main__":
    print(
        "\n".join(
            [
                *table(),
                "",
                foreign(),
                "",
                *batch_table(),
                "",
                *responses_table(),
                "",
                *(line for table in ollama_tables() for line in [*table, ""]),
                *embeddings_table(),
                "",
                *rerank_table(),
                "",
                *score_table(),
                "",
                *speech_table(),
                "",
                *transcription_table(),
            ]
        )
    )
