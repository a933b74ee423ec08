# SPDX-License-Identifier: Apache-2.0
"""The endpoint that embeds texts."""

import base64
import json
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from sanic import HTTPResponse, Request
from sanic.response import raw

from pontil.http.fields.client_fields import INERT
from pontil.http.fields.prompt import MAX_PRIORITY, TO_FIT, PromptFields, special_tokens
from pontil.http.fields.service_tier import SERVICE_TIER
from pontil.http.intake.body import BodyReader, check_type, understood
from pontil.http.intake.ordered_executor import OrderedExecutor
from pontil.http.intake.served_model import check_name
from pontil.http.openai.chat.prompt_reader import SHORT_TEXT, TextLimit, maximum
from pontil.http.openai.completions.request import Prompt, PromptsType
from pontil.http.openai.embeddings.served_embedding import ServedEmbedding
from pontil.http.schema.parameter import Parameter, ParameterTable
from pontil.http.schema.parameter_types import IntegerType, TextType, WordType
from pontil.http.schema.reader import Fields, IgnoredFields
from pontil.http.stream.receipts import check_no_receipt
from pontil.http.stream.reply import route_of
from pontil.http.stream.reply_schema import COUNT, TEXT, closed, constant, many
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.admission.control import check_together
from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot
from pontil.runtime.proxy.portions import submit_in_portions
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.text_embedding import TextEmbedding

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
    handling = PromptFields(
        values["add_special_tokens"], truncate, "", values["priority"], True, values["service_tier"]
    )
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
    SERVICE_TIER,
    *INERT,
)  # fmt: skip
TABLE = ParameterTable(EMBEDDING)


VECTOR = {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string", "contentEncoding": "base64"}]}
EMBEDDINGS = closed(
    {
        "object": constant("list"),
        "data": many(closed({"object": constant("embedding"), "index": COUNT, "embedding": VECTOR})),
        "model": TEXT,
        "usage": closed({"prompt_tokens": COUNT, "total_tokens": COUNT}),
    }
)


def embedding_body(vectors: Sequence[bytes], model: str, prompt_tokens: int, *, in_base64: bool) -> bytes:
    """Serialize vectors of float32 numbers in little-endian order. One call of the C code that writes JSON writes one
    vector, so that other threads run in between."""
    write = encoded if in_base64 else numbers
    items = (
        b'{"object": "embedding", "index": %d, "embedding": %b}' % (index, write(vector))
        for index, vector in enumerate(vectors)
    )
    usage = json.dumps({"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}).encode()
    name = json.dumps(model).encode()
    return b'{"object": "list", "data": [%b], "model": %b, "usage": %b}' % (b", ".join(items), name, usage)


def encoded(vector: bytes) -> bytes:
    return b'"%b"' % base64.b64encode(vector)


def numbers(vector: bytes) -> bytes:
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return json.dumps(values.tolist()).encode()


# Numbers of an answer that are written without a thread.
FEW_NUMBERS = 4096
FLOAT_BYTES = 4


class WriteVectors(Protocol):
    """A writer of the body of an answer."""

    def __call__(self, vectors: Sequence[bytes], model: str, prompt_tokens: int) -> bytes: ...


class EmbeddingRoutes:
    """The handler over one proxy. `served` is None where no embedding model is."""

    def __init__(self, proxy: Proxy, served: ServedEmbedding | None, bodies: BodyReader) -> None:
        self.proxy, self.served, self.bodies = proxy, served, bodies
        self.executor = OrderedExecutor()

    async def embeddings(self, request: Request) -> HTTPResponse:
        embedding_request = await self.read(request, read_embedding)
        write = partial(embedding_body, in_base64=embedding_request.in_base64)
        return await self.embed(request, embedding_request, write)

    @property
    def embedding(self) -> ServedEmbedding:
        """The embedding model. Raises RequestError where there is none."""
        if self.served is None:
            says = "embeddings are not served here: start the server with --embed, which starts workers for them"
            raise RequestError(says, status=404, code="not_supported")
        return self.served

    async def read(
        self,
        request: Request,
        parser: Callable[..., EmbeddingRequest],
        check: Callable[[Request], None] = check_type,
    ) -> EmbeddingRequest:
        """Read this request's body, whose content type passes this check, by its parser."""
        check_no_receipt(request, "an embedding")
        vocab_size, ignored_fields = self.embedding.vocab_size, self.bodies.ignored(request)
        return await self.bodies.read(request, partial(parser, vocab_size=vocab_size, ignored=ignored_fields), check)

    async def embed(self, request: Request, embedding_request: EmbeddingRequest, write: WriteVectors) -> HTTPResponse:
        """Answer a request that has been read, with the body that `write` makes."""
        served_model = self.embedding
        check_name(self.proxy.config, embedding_request.model, served_model.name)
        ticket = embedding_request.handling.complete(
            request.ctx.ticket, share_prefixes=self.proxy.config.share_prefixes
        )
        snapshot = served_model.snapshot
        check_together(snapshot.workers, len(embedding_request.inputs), "input")
        check_dimensions(embedding_request.dimensions, snapshot)
        self.proxy.admissions.check_limits(ticket, len(embedding_request.inputs))
        ids = await self.input_ids(embedding_request, served_model, snapshot)
        understood(request)
        works = [TextEmbedding(token_ids, served_model.name, embedding_request.dimensions) for token_ids in ids]
        stream = await submit_in_portions(self.proxy, ticket, works, snapshot)
        return await self.answered(stream, works, partial(write, model=served_model.name))

    async def input_ids(
        self, embedding_request: EmbeddingRequest, served_model: ServedEmbedding, snapshot: RegistrySnapshot
    ) -> list[list[int]]:
        """Tokenize the inputs and fit them to the context, in a thread unless they are short."""
        context, handling = snapshot.context_length, embedding_request.handling
        limit = TextLimit(context, handling.is_whole)
        texts = {index: text for index, text in enumerate(embedding_request.inputs) if isinstance(text, str)}
        for index, text in texts.items():
            served_model.encoder.check(text, input_name(embedding_request.inputs, index), limit)
        work = partial(encode_all, embedding_request, served_model, context)
        size = sum(map(len, texts.values()))
        ids = await self.executor.run(work, size) if size > SHORT_TEXT else work()
        for index, token_ids in enumerate(ids):
            check_length(token_ids, context, input_name(embedding_request.inputs, index))
        return ids

    async def answered(
        self, stream: Stream, works: Sequence[TextEmbedding], write: Callable[..., bytes]
    ) -> HTTPResponse:
        """Return the answer once all vectors are there. What has no reader any more is cancelled."""
        try:
            await stream.all()
            await stream.settled()
        finally:
            stream.cancel()
        vectors = [work.vector or b"" for work in works]
        work = partial(write, vectors, prompt_tokens=stream.final_usage.prompt_tokens)
        count = sum(map(len, vectors)) // FLOAT_BYTES
        body = await self.executor.run(work, count) if count > FEW_NUMBERS else work()
        return raw(body, content_type="application/json", headers=route_of(stream))


def input_name(inputs: Sequence[Prompt], index: int) -> str:
    return "input" if len(inputs) == 1 else f"input[{index}]"


def encode_all(embedding_request: EmbeddingRequest, served_model: ServedEmbedding, context: int) -> list[list[int]]:
    """Tokenize the inputs, and cut those that are to be cut."""
    handling = embedding_request.handling
    encoded_inputs = []
    for prompt in embedding_request.inputs:
        if not isinstance(prompt, str):
            encoded_inputs.append(handling.cut(list(prompt), context))
            continue
        ids = served_model.tokenizer.encode_unlocked(prompt, handling.add_special_tokens)
        kept_tokens = len(ids) if handling.truncate is None else len(handling.cut(ids, context))
        if kept_tokens < len(ids):
            ids = shortened(ids, served_model.tokenizer.encode_unlocked(prompt, False), kept_tokens)
        encoded_inputs.append(ids)
    return encoded_inputs


def shortened(ids: list[int], body: list[int], kept_tokens: int) -> list[int]:
    """Return so many ids of a text. Its own tokens, the `body`, are cut at their end; those that the tokenizer puts
    around them stay, as the model knows them."""
    around = len(ids) - len(body)
    before = next((place for place in range(around + 1) if ids[place : place + len(body)] == body), around)
    room = kept_tokens - around
    return ids[:before] + body[:room] + ids[before + len(body) :] if room > 0 else ids[:kept_tokens]


def check_length(ids: Sequence[int], context: int, name: str) -> None:
    if not ids:
        raise RequestError(f"{name} is empty: give at least one token", param="input")
    if len(ids) > context:
        says = f"{maximum(context)} However, {name} has {len(ids)} tokens: shorten it, or have it cut by "
        raise RequestError(f"{says}truncate_prompt_tokens: -1", param="input", code="context_length_exceeded")


def check_dimensions(dimensions: int | None, snapshot: RegistrySnapshot) -> None:
    size = snapshot.embedding_size
    if dimensions is not None and size is not None and dimensions > size:
        says = f"dimensions is {dimensions if dimensions < 1 << 63 else 'far more'}, but the model has {size}"
        raise RequestError(f"{says}: ask for at most as many", param="dimensions")
