# SPDX-License-Identifier: Apache-2.0
"""Parser of /v1/embeddings: from JSON to a frozen request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.http.fields.client_fields import INERT
from pontil.http.fields.prompt import MAX_PRIORITY, TO_FIT, PromptFields, special_tokens
from pontil.http.openai.completions.request import Prompt, PromptsType
from pontil.http.schema.parameter import Parameter, ParameterTable
from pontil.http.schema.parameter_types import IntegerType, TextType, WordType
from pontil.http.schema.reader import Fields, IgnoredFields

# As many as OpenAI takes.
MAX_INPUTS = 2048
FORMATS = ("float", "base64")


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A request for vectors, one for each of the inputs, which are text or token ids. `dimensions` None: as many as the
    model has."""

    model: str | None
    inputs: tuple[Prompt, ...]
    dimensions: int | None
    in_base64: bool
    handling: PromptFields


def read_embedding(data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None) -> EmbeddingRequest:
    """Parse the request. Raises RequestError, naming the parameter, for anything invalid."""
    fields = Fields(data, vocab_size=vocab_size, ignored=ignored)
    values = TABLE.read(fields)
    truncate = values["truncate_prompt_tokens"]
    if truncate == 0:
        raise fields.wrong("truncate_prompt_tokens", "must be at least 1, or -1 to keep as much as fits, not 0")
    handling = PromptFields(values["add_special_tokens"], truncate, "", values["priority"], keeps_beginning=True)
    return EmbeddingRequest(
        values["model"], values["input"], values["dimensions"], values["encoding_format"] == "base64", handling
    )


EMBEDDING = (
    Parameter("model", TextType(), "the name of the embedding model; absent: the one that is served"),
    Parameter("input", PromptsType(MAX_INPUTS), "text or token ids", required=True),
    Parameter("encoding_format", WordType(FORMATS), "how vectors are written; base64: of float32, the lowest byte "
              "first", "float"),
    Parameter("dimensions", IntegerType(1), "the length of the vectors, cut and scaled to length 1 again; absent: the "
              "model's own"),
    special_tokens(True),
    Parameter("truncate_prompt_tokens", IntegerType(TO_FIT), "keep this many tokens of each input, the first ones; "
              "-1: as many as fit"),
    Parameter("priority", IntegerType(-MAX_PRIORITY, MAX_PRIORITY), "who waits for a worker: the lowest goes first", 0),
    *INERT,
)  # fmt: skip
TABLE = ParameterTable(EMBEDDING)
