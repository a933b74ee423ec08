# SPDX-License-Identifier: Apache-2.0
"""Small routes that clients of vLLM, SGLang and SageMaker ask for."""

from collections.abc import Mapping
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import json as json_response

from pontil.http.openai.chat.request import ChatRequest, read_chat
from pontil.http.openai.completions.request import CompletionRequest, read_completion
from pontil.http.openai.completions.route import GenerationRoutes
from pontil.http.schema.reader import IgnoredFields
from pontil.http.vllm.generate import GenerateShape, read_generate

NOTHING: tuple[Any, ...] = (None, "", [])


def read_either(
    data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None
) -> ChatRequest | CompletionRequest:
    """Parse the request, a chat where it has messages and no prompt. Raises RequestError, naming the parameter."""
    is_chat = data.get("messages") is not None and data.get("prompt") in NOTHING
    return (read_chat if is_chat else read_completion)(data, vocab_size, ignored)


class CompatibilityRoutes:
    """Handlers that answer by what the other routes have."""

    def __init__(self, routes: GenerationRoutes) -> None:
        self.routes = routes
        self.proxy, self.model = routes.proxy, routes.model

    async def ping(self, request: Request) -> HTTPResponse:
        """Report that the process is alive, as /health does."""
        return json_response({"status": "alive"})

    async def load(self, request: Request) -> HTTPResponse:
        """Return the number of requests that are waiting or being served."""
        return json_response({"server_load": len(self.proxy.requests)})

    async def tokenizer_info(self, request: Request) -> HTTPResponse:
        tokenizer = self.proxy.tokenizer
        return json_response(
            {
                "vocab_size": tokenizer.vocab_size,
                "bos_token": tokenizer.bos_token,
                "eos_token": tokenizer.eos_token,
                "model_max_length": self.model.known_context,
                "chat_template": tokenizer.chat_template,
            }
        )

    async def get_model_info(self, request: Request) -> HTTPResponse:
        name = self.model.name
        return json_response({"model_path": name, "tokenizer_path": name, "is_generation": True})

    async def invocations(self, request: Request) -> HTTPResponse | None:
        """Answer a chat or a completion."""
        generation_request = await self.routes.read(request, read_either)
        if isinstance(generation_request, ChatRequest):
            return await self.routes.chosen(request).answer_chat(request, generation_request)
        return await self.routes.chosen(request).answer_completion(request, generation_request)

    async def generate(self, request: Request) -> HTTPResponse | None:
        """Answer as SGLang does."""
        completion_request = await self.routes.read(request, read_generate)
        return await self.routes.chosen(request).answer_completion(request, completion_request, GenerateShape)

    async def render(self, request: Request) -> HTTPResponse:
        """Return the prompt of a chat, which is not answered."""
        chat_request = await self.routes.read(request, read_chat)
        routes = self.routes.chosen(request)
        ids = await routes.preparation.rendered(chat_request)
        return json_response({"request_id": request.ctx.request_id, "model": routes.model.name, "token_ids": ids})
