# SPDX-License-Identifier: Apache-2.0
"""The endpoints that generate, and those that only tokenize."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import json as json_response

from pontil.http.chat_prompt import read_chat_prompt
from pontil.http.chat_request import ChatRequest, read_chat
from pontil.http.completion_request import CompletionRequest, read_completion
from pontil.http.fields import Fields
from pontil.http.generation import reply
from pontil.http.grammar_check import GrammarCheck
from pontil.http.json_body import parse_body
from pontil.http.prompts import PromptReader
from pontil.http.reply_shape import ChatShape, CompletionShape, Heading, Shown
from pontil.http.sampling_fields import SamplingFields
from pontil.runtime.errors import PontilError, RequestError, Unavailable
from pontil.runtime.proxy.admission import token_budget
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.stream import Stream
from pontil.runtime.sampling_params import SamplingParams

COMPLETION_TOKENS = 16
MAX_DETOKENIZED = 1 << 20


@dataclass(frozen=True, slots=True)
class Admitted:
    """One prompt, fitted to the context."""

    prompt: list[int]
    params: SamplingParams
    cache_salt: str


class Routes:
    """Handlers over one proxy. What they raise becomes an error object in one place."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.prompts = PromptReader(proxy.tokenizer)
        self.grammars = GrammarCheck()

    @property
    def vocab_size(self) -> int:
        return self.proxy.tokenizer.vocab_size

    async def completions(self, request: Request) -> HTTPResponse | None:
        wanted = read_completion(parse_body(request.body), self.vocab_size)
        self.check_model(wanted.model)
        await self.grammars.check(wanted.sampling.structure)
        prompts = [
            await self.prompts.text_ids(prompt) if isinstance(prompt, str) else list(prompt)
            for prompt in wanted.prompts
        ]
        admitted = [self.fit(prompt, wanted, COMPLETION_TOKENS, "prompt") for prompt in prompts]
        shape = CompletionShape(self.heading("cmpl"), wanted.delivery, self.shown(wanted.sampling, wanted.echo))
        return await reply(request, self.submit(admitted, request.ctx.request_id), shape)

    async def chat(self, request: Request) -> HTTPResponse | None:
        wanted = read_chat(parse_body(request.body), self.vocab_size)
        self.check_model(wanted.model)
        await self.grammars.check(wanted.sampling.structure)
        prompt = await self.prompts.chat_ids(wanted.prompt)
        admitted = [self.fit(prompt, wanted, None, "messages")]
        shape = ChatShape(self.heading("chatcmpl"), wanted.delivery, self.shown(wanted.sampling))
        return await reply(request, self.submit(admitted, request.ctx.request_id), shape)

    async def tokenize(self, request: Request) -> HTTPResponse:
        fields = Fields(parse_body(request.body))
        self.check_model(fields.text("model"))
        if fields.data.get("messages") is not None:
            ids = await self.prompts.chat_ids(read_chat_prompt(fields))
        else:
            text = fields.text("prompt")
            if text is None:
                raise fields.wrong("prompt", "is missing: give a text, or messages")
            add_special_tokens = fields.boolean("add_special_tokens", True)
            ids = await self.prompts.text_ids(text, add_special_tokens) if text else []
        fields.finish()
        return json_response({"tokens": ids, "count": len(ids), "max_model_len": self.known_context})

    async def detokenize(self, request: Request) -> HTTPResponse:
        fields = Fields(parse_body(request.body))
        self.check_model(fields.text("model"))
        if fields.data.get("tokens") is None:
            raise fields.wrong("tokens", "is missing: give token ids")
        ids = fields.integers("tokens", self.vocab_size, MAX_DETOKENIZED)
        fields.finish()
        return json_response({"prompt": self.proxy.tokenizer.decode(ids, skip_special_tokens=False)})

    @property
    def model(self) -> str:
        return self.proxy.config.served_model_name

    @property
    def known_context(self) -> int | None:
        try:
            return self.proxy.context_length
        except Unavailable:
            return None

    def check_model(self, name: str | None) -> None:
        """A request that names no model means the one there is."""
        if name is not None and name != self.model:
            raise RequestError(
                f"there is no model {name!r:.200}: this server has {self.model!r}",
                status=404,
                param="model",
                code="model_not_found",
            )

    def heading(self, kind: str) -> Heading:
        return Heading(f"{kind}-{secrets.token_hex(12)}", int(time.time()), self.model)

    def shown(self, sampling: SamplingFields, echo: bool = False) -> Shown:
        """The logprobs of an echoed prompt are shown with the answer's."""
        apart = sampling.prompt_logprobs is not None and not (echo and sampling.logprobs is not None)
        return Shown(self.proxy.tokenizer, sampling.skip_special_tokens, sampling.logprobs is not None, apart, echo)

    def fit(
        self, prompt: list[int], wanted: CompletionRequest | ChatRequest, default: int | None, prompt_name: str
    ) -> Admitted:
        sampling = wanted.sampling
        names = (prompt_name, sampling.max_tokens_name)
        budget = token_budget(len(prompt), sampling.max_tokens, default, self.proxy.context_length, names)
        return Admitted(prompt, sampling.params(budget), wanted.cache_salt)

    def submit(self, admitted: Sequence[Admitted], name: str) -> list[Stream]:
        """All of them or none."""
        streams: list[Stream] = []
        try:
            for one in admitted:
                streams.append(self.proxy.submit(one.prompt, one.params, name, one.cache_salt))
        except PontilError:
            for stream in streams:
                stream.cancel()
            raise
        return streams

    async def models(self, request: Request) -> HTTPResponse:
        return json_response({"object": "list", "data": [self.model_object]})

    async def one_model(self, request: Request, name: str) -> HTTPResponse:
        self.check_model(name)
        return json_response(self.model_object)

    @property
    def model_object(self) -> dict[str, Any]:
        return {
            "id": self.model,
            "object": "model",
            "created": self.proxy.started_at,
            "owned_by": "pontil",
            "max_model_len": self.known_context,
        }
