# SPDX-License-Identifier: Apache-2.0
"""The endpoints of Ollama's API that embed texts, over the path of /v1/embeddings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sanic import HTTPResponse, Request

from pontil.http.fields.prompt import TO_FIT, PromptFields
from pontil.http.intake.body import check_told_type
from pontil.http.ollama.model_name import own_name
from pontil.http.ollama.request import KEEP_ALIVE
from pontil.http.ollama.shape import nanoseconds
from pontil.http.openai.completions.request import PromptsType
from pontil.http.openai.embeddings.route import MAX_INPUTS, EmbeddingRequest, EmbeddingRoutes, numbers
from pontil.http.schema.parameter import Parameter, ParameterTable
from pontil.http.schema.parameter_types import FlagType, InertType, IntegerType, ObjectType, TextType
from pontil.http.schema.reader import Fields, IgnoredFields
from pontil.runtime.timeline.received import ReceivedRequest

MODEL = Parameter("model", TextType(), "the name of the embedding model, with `:latest` or without", required=True)
OPTIONS = Parameter("options", InertType(ObjectType(), None), "of answers that are drawn")
EMBED = (
    MODEL,
    Parameter("input", PromptsType(MAX_INPUTS), "text or token ids", required=True),
    Parameter("truncate", FlagType(), "cut what is too long at its end, and do not refuse it", True),
    Parameter(
        "dimensions",
        IntegerType(1),
        "the length of the vectors, cut and scaled to length 1 again; absent: the model's own",
    ),
    OPTIONS,
    KEEP_ALIVE,
)
EMBEDDINGS = (MODEL, Parameter("prompt", PromptsType(1), "text or token ids", required=True), OPTIONS, KEEP_ALIVE)
EMBED_TABLE, EMBEDDINGS_TABLE = ParameterTable(EMBED), ParameterTable(EMBEDDINGS)


def read_embed(data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None) -> EmbeddingRequest:
    """Parse the request. Raises RequestError, naming the parameter, for anything invalid."""
    values = EMBED_TABLE.read(Fields(data, vocab_size=vocab_size, ignored=ignored))
    handling = PromptFields(True, TO_FIT if values["truncate"] else None, "", 0, keeps_beginning=True)
    return EmbeddingRequest(values["model"], values["input"], values["dimensions"], False, handling)


def read_embeddings(data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None) -> EmbeddingRequest:
    """Parse the request in its older form, which is for one text."""
    values = EMBEDDINGS_TABLE.read(Fields(data, vocab_size=vocab_size, ignored=ignored))
    handling = PromptFields(True, TO_FIT, "", 0, keeps_beginning=True)
    return EmbeddingRequest(values["model"], values["prompt"], None, False, handling)


def embed_body(vectors: Sequence[bytes], model: str, prompt_tokens: int, received: ReceivedRequest) -> bytes:
    """Serialize vectors. One call of the C code that writes JSON writes one, so that other threads run in between."""
    about = {
        "total_duration": nanoseconds(received.clock() - received.at),
        "load_duration": 0,
        "prompt_eval_count": prompt_tokens,
    }
    head, tail = json.dumps(model).encode(), json.dumps(about)[1:].encode()
    return b'{"model": %b, "embeddings": [%b], %b' % (head, b", ".join(map(numbers, vectors)), tail)


def embeddings_body(vectors: Sequence[bytes], model: str, prompt_tokens: int) -> bytes:
    return b'{"embedding": %b}' % numbers(vectors[0])


class OllamaEmbeddingRoutes:
    """Handlers over the one of /v1/embeddings."""

    def __init__(self, vectors: EmbeddingRoutes) -> None:
        self.vectors = vectors

    async def ollama_embed(self, request: Request) -> HTTPResponse:
        embedding_request = self.named(await self.vectors.read(request, read_embed, check_told_type))
        write = partial(embed_body, received=request.ctx.ticket.received)
        return await self.vectors.embed(request, embedding_request, write)

    async def ollama_embeddings(self, request: Request) -> HTTPResponse:
        embedding_request = self.named(await self.vectors.read(request, read_embeddings, check_told_type))
        return await self.vectors.embed(request, embedding_request, embeddings_body)

    def named(self, embedding_request: EmbeddingRequest) -> EmbeddingRequest:
        """Return the request with the name under which the embedding model is served, if it means that."""
        return replace(embedding_request, model=own_name(embedding_request.model, self.vectors.embedding.name))
