# SPDX-License-Identifier: Apache-2.0
"""The endpoints that list the served models."""

from sanic import HTTPResponse, Request
from sanic.response import json as json_response

from pontil.http.intake.served_model import ServedModel, no_model
from pontil.http.openai.embeddings.served_embedding import ServedEmbedding


class ModelList:
    """Handlers over the models: the one that generates, and one that embeds texts if there is one."""

    def __init__(self, model: ServedModel, embedding: ServedEmbedding | None) -> None:
        self.served: tuple[ServedModel | ServedEmbedding, ...] = (model,) if embedding is None else (model, embedding)

    async def models(self, request: Request) -> HTTPResponse:
        return json_response({"object": "list", "data": [one.described for one in self.served]})

    async def one_model(self, request: Request, name: str) -> HTTPResponse:
        for one in self.served:
            if one.name == name:
                return json_response(one.described)
        raise no_model(name, [one.name for one in self.served])
