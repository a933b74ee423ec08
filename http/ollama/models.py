# SPDX-License-Identifier: Apache-2.0
"""The endpoints of Ollama's API about models and the server."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import json as json_response
from sanic.response import text as text_response

from pontil.http.intake.body import check_told_type
from pontil.http.intake.served_model import ServedModel, no_model
from pontil.http.ollama.model_name import own_name, tagged
from pontil.http.ollama.shape import time_of
from pontil.http.openai.completions.route import GenerationRoutes
from pontil.http.openai.embeddings.served_embedding import ServedEmbedding
from pontil.http.schema.parameter import Parameter, read_all
from pontil.http.schema.parameter_types import FlagType, InertType, ObjectType, TextType
from pontil.http.schema.reader import Fields, IgnoredFields

# The version of Ollama's API that is served: its clients compare it with the one that brought what they need.
API_VERSION = "0.12.11"
RUNNING = "Ollama is running"
# No model leaves before the server does.
NEVER = "9999-12-31T23:59:59Z"
# Stands for the architecture in names of facts: the proxy does not know it.
ARCHITECTURE = "pontil"
WEIGHTS = ("*.safetensors", "*.gguf", "*.bin")
SHOW = (
    Parameter("model", TextType(), "the name of a model"),
    Parameter("name", TextType(), "the older name of model"),
    Parameter("verbose", InertType(FlagType(), None), "show more"),
    Parameter("system", InertType(TextType(), None), "of a model that would be made"),
    Parameter("template", InertType(TextType(), None), "of a model that would be made"),
    Parameter("options", InertType(ObjectType(), None), "of a model that would be made"),
)


def read_show(data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None) -> str:
    """Return the name of the model to be described. Raises RequestError, naming the parameter."""
    fields = Fields(data, vocab_size=vocab_size, ignored=ignored)
    values = read_all(fields, SHOW)
    name: str = values["model"] or values["name"] or ""
    if not name:
        raise fields.wrong("model", "is missing: give the name of a model", "missing_required_parameter")
    return name


def size_of(path: Path) -> int:
    """Return the bytes of a model's weights, 0 where they do not lie here."""
    files = [path] if path.is_file() else [file for pattern in WEIGHTS for file in path.glob(pattern)]
    return sum(file.stat().st_size for file in files)


class OllamaModels:
    """Handlers over the models: those that generate, and one that embeds texts if there is one."""

    def __init__(self, generation: GenerationRoutes, embedding: ServedEmbedding | None) -> None:
        self.generation, self.embedding = generation, embedding
        config = generation.proxy.config
        paths = {generation.model.name: config.model_path} | {model.name: model.path for model in config.further_models}
        if embedding is not None and config.embedding_model is not None:
            paths[embedding.name] = Path(config.embedding_model)
        self.sizes = {name: size_of(path) for name, path in paths.items()}

    @property
    def served(self) -> tuple[ServedModel | ServedEmbedding, ...]:
        models = self.generation.models
        return (*models,) if self.embedding is None else (*models, self.embedding)

    async def tags(self, request: Request) -> HTTPResponse:
        """List the models."""
        models = [self.listed(model) for model in self.served] + self.adapters
        return json_response({"models": [model | {"modified_at": self.started} for model in models]})

    async def ps(self, request: Request) -> HTTPResponse:
        """List the models that workers have now."""
        described = [(model, model.described["max_model_len"]) for model in self.served]
        return json_response(
            {
                "models": [
                    self.listed(model) | {"expires_at": NEVER, "size_vram": 0, "context_length": context}
                    for model, context in described
                    if context is not None
                ]
            }
        )

    async def show_model(self, request: Request) -> HTTPResponse:
        """Describe a model."""
        name = await self.generation.read(request, read_show, check_told_type)
        for model in self.served:
            if own_name(name, model.name) == model.name:
                return json_response(self.described(model))
        raise no_model(name, [model.name for model in self.served])

    async def api_version(self, request: Request) -> HTTPResponse:
        return json_response({"version": API_VERSION, "pontil": self.generation.proxy.config.version})

    async def root(self, request: Request) -> HTTPResponse:
        """Tell what Ollama's clients look for."""
        return text_response(RUNNING)

    @property
    def started(self) -> str:
        return time_of(int(self.generation.proxy.books.started))

    def listed(self, model: ServedModel | ServedEmbedding) -> dict[str, Any]:
        name, about = tagged(model.name), model.described
        return {
            "name": name,
            "model": name,
            "size": self.sizes[model.name],
            "digest": about["system_fingerprint"] or "",
            "details": self.details(about),
        }

    @property
    def adapters(self) -> list[dict[str, Any]]:
        """Adapters as models of their own, whose parent is the model; their size is the model's."""
        model = self.generation.model
        listed = self.listed(model)
        details = listed["details"] | {"parent_model": listed["name"]}
        names = [tagged(name) for name in model.adapters]
        return [listed | {"name": name, "model": name, "details": details} for name in names]

    def details(self, about: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "parent_model": "",
            "format": "",
            "family": ARCHITECTURE,
            "families": [ARCHITECTURE],
            "parameter_size": "",
            "quantization_level": about["dtype"] or "",
        }

    def described(self, model: ServedModel | ServedEmbedding) -> dict[str, Any]:
        about = model.described
        facts = {"context_length": about["max_model_len"], "vocab_size": about["vocab_size"]}
        if isinstance(model, ServedEmbedding):
            facts["embedding_length"] = about["embedding_size"]
        template = model.tokenizer.chat_template if isinstance(model, ServedModel) else None
        return {
            "modelfile": "",
            "parameters": "",
            "template": template or "",
            "details": self.details(about),
            "model_info": {"general.architecture": ARCHITECTURE, "general.basename": model.name}
            | {f"{ARCHITECTURE}.{name}": value for name, value in facts.items() if value is not None},
            "capabilities": self.capabilities(model),
            "modified_at": self.started,
        }

    def capabilities(self, model: ServedModel | ServedEmbedding) -> list[str]:
        if isinstance(model, ServedEmbedding):
            return ["embedding"]
        dialect = self.generation.named.of(model.name).prompts.dialect
        can = {"tools": dialect.calls is not None, "thinking": dialect.thinks or dialect.has_messages}
        return ["completion", *(name for name, does in can.items() if does)]
