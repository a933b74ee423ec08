# SPDX-License-Identifier: Apache-2.0
"""The endpoints for tokenization and detokenization, in vLLM's formats."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import raw

from pontil.http.intake.body import BodyReader
from pontil.http.intake.served_model import NamedRoutes, ServedModel
from pontil.http.openai.chat.prompt import CHAT_PROMPT, chat_prompt
from pontil.http.openai.chat.prompt_reader import NOT_KEPT_WHOLE, PromptReader, TextLimit
from pontil.http.schema.parameter import Parameter, read_all
from pontil.http.schema.parameter_types import FlagType, IdsType, TextType
from pontil.http.schema.reader import Fields

MAX_DETOKENIZED = 1 << 20
# Context length to assume while no worker has reported one.
LEAST_DETOKENIZED = 1 << 16
# Tokens that are serialized without a thread, and by one call of the C code that writes JSON.
AT_ONCE = 4096
MODEL = Parameter("model", TextType(), "the name of a model that is served; absent: the first one")
TOKENIZE = (
    MODEL,
    Parameter("prompt", TextType(), "a text"),
    Parameter("add_special_tokens", FlagType(), "what the tokenizer's file puts around it; absent: for a text only"),
    Parameter("return_token_strs", FlagType(), "show each token as the vocabulary writes it", False),
)
# Parameters of a chat, as an alternative to `prompt`.
TOKENIZE_CHAT = (CHAT_PROMPT[0].optional, *CHAT_PROMPT[1:])
DETOKENIZE = (MODEL, Parameter("tokens", IdsType(MAX_DETOKENIZED), "token ids", required=True))


class TokenRoutes:
    """Handlers over one model and its tokenizer, and by those of the others `beside` it for requests that name them."""

    def __init__(
        self, model: ServedModel, prompts: PromptReader, bodies: BodyReader, beside: "Sequence[TokenRoutes]" = ()
    ) -> None:
        self.model, self.prompts, self.bodies, self.beside = model, prompts, bodies, beside

    async def read(
        self, request: Request, parameters: Sequence[Parameter]
    ) -> tuple["TokenRoutes", Fields, dict[str, Any]]:
        """Return the routes of the model that a request names, and what it asks of them."""
        ignored_fields, named_routes = self.bodies.ignored(request), NamedRoutes(self, self.beside)

        def understand(data: Mapping[str, Any]) -> tuple["TokenRoutes", Fields, dict[str, Any]]:
            chosen = named_routes.of(data.get("model"))
            fields = Fields(data, vocab_size=chosen.model.vocab_size, ignored=ignored_fields)
            return chosen, fields, read_all(fields, parameters)

        chosen, fields, values = await self.bodies.read(request, understand)
        chosen.model.check(values["model"])
        return chosen, fields, values

    async def tokenize(self, request: Request) -> HTTPResponse:
        chosen, fields, values = await self.read(request, (*TOKENIZE, *TOKENIZE_CHAT))
        ids = await (chosen.text_ids if values["messages"] is None else chosen.chat_ids)(fields, values)
        write = partial(chosen.tokenized, ids, values["return_token_strs"])
        return json_bytes(await self.prompts.executor.run(write, len(ids)) if len(ids) > AT_ONCE else write())

    def tokenized(self, ids: Sequence[int], with_texts: bool) -> bytes:
        token_names = [self.prompts.tokenizer.token_name(token) for token in ids] if with_texts else None
        return b'{"count": %d, "max_model_len": %b, "tokens": %b, "token_strs": %b}' % (
            len(ids),
            json.dumps(self.model.known_context).encode(),
            json_list(ids),
            b"null" if token_names is None else json_list(token_names),
        )

    async def text_ids(self, fields: Fields, values: Mapping[str, Any]) -> list[int]:
        if values["prompt"] is None:
            raise fields.wrong("prompt", "is missing: give a text, or messages", "missing_required_parameter")
        for parameter in TOKENIZE_CHAT:
            if fields.data.get(parameter.name) is not None:
                raise fields.wrong(parameter.name, "is for messages: leave it out")
        if not values["prompt"]:
            return []
        return await self.prompts.text_ids(values["prompt"], self.limit, values["add_special_tokens"] is not False)

    async def chat_ids(self, fields: Fields, values: Mapping[str, Any]) -> list[int]:
        if values["prompt"] is not None:
            raise fields.wrong("prompt", "and messages are both there: give one of them")
        prompt = await self.prompts.chat(chat_prompt(fields, values), self.limit, bool(values["add_special_tokens"]))
        return prompt.ids

    @property
    def limit(self) -> TextLimit:
        """The limit of a text that is only counted."""
        return TextLimit(self.model.known_context, whole=False)

    async def detokenize(self, request: Request) -> HTTPResponse:
        chosen, fields, values = await self.read(request, DETOKENIZE)
        ids, most = values["tokens"], chosen.most_detokenized
        if len(ids) > most:
            raise fields.wrong("tokens", f"may hold at most {most} items")
        write = partial(chosen.detokenized, ids)
        return json_bytes(await self.prompts.executor.run(write, len(ids)) if len(ids) > AT_ONCE else write())

    def detokenized(self, ids: Sequence[int]) -> bytes:
        text = self.prompts.tokenizer.decode(ids, skip_special_tokens=False)
        return json.dumps({"prompt": text}, ensure_ascii=False).encode()

    @property
    def most_detokenized(self) -> int:
        """The most ids that /tokenize returns for the longest text, at one token per byte."""
        return NOT_KEPT_WHOLE * (self.model.known_context or LEAST_DETOKENIZED)


def json_list(values: Sequence[Any]) -> bytes:
    """Serialize a list in pieces, so that other threads run in between."""
    pieces = (values[start : start + AT_ONCE] for start in range(0, len(values), AT_ONCE))
    return b"[%b]" % b", ".join(json.dumps(piece, ensure_ascii=False)[1:-1].encode() for piece in pieces)


def json_bytes(body: bytes) -> HTTPResponse:
    return raw(body, content_type="application/json")
