# SPDX-License-Identifier: Apache-2.0
"""The routes of Ollama's API."""

from dataclasses import replace

from pontil.http.access.endpoint import Endpoint, RouteAccess
from pontil.http.intake.body import BODY_ERRORS, GENERATION_ERRORS
from pontil.http.ollama import schema
from pontil.http.ollama.embed import EMBED, EMBEDDINGS, OllamaEmbeddingRoutes
from pontil.http.ollama.models import SHOW, OllamaModels
from pontil.http.ollama.request import CHAT, GENERATE
from pontil.http.ollama.route import OllamaRoutes
from pontil.http.ollama.shape import LINES
from pontil.http.openai.completions.route import GenerationRoutes
from pontil.http.openai.embeddings.route import EmbeddingRoutes
from pontil.http.stream.reply_schema import TEXT


def ollama_endpoints(generation: GenerationRoutes, vectors: EmbeddingRoutes) -> tuple[Endpoint, ...]:
    """Return the routes over those of chats and of embeddings."""
    answers, embeddings = OllamaRoutes(generation), OllamaEmbeddingRoutes(vectors)
    table = (
        Endpoint(
            "POST",
            "/api/chat",
            answers.ollama_chat,
            "Answer a conversation, as Ollama does.",
            schema.CHAT,
            CHAT,
            schema.CHAT,
            GENERATION_ERRORS,
            stream_type=LINES,
        ),
        Endpoint(
            "POST",
            "/api/generate",
            answers.ollama_generate,
            "Answer or continue a text, as Ollama does.",
            schema.GENERATED,
            GENERATE,
            schema.GENERATED,
            GENERATION_ERRORS,
            stream_type=LINES,
        ),
        Endpoint(
            "POST",
            "/api/embed",
            embeddings.ollama_embed,
            "Vectors of texts, as Ollama has them.",
            schema.EMBEDDED,
            EMBED,
            errors=GENERATION_ERRORS,
        ),
        Endpoint(
            "POST",
            "/api/embeddings",
            embeddings.ollama_embeddings,
            "The vector of a text.",
            schema.EMBEDDING,
            EMBEDDINGS,
            errors=GENERATION_ERRORS,
        ),
        *model_endpoints(OllamaModels(generation, vectors.served)),
    )
    return tuple(replace(endpoint, error=schema.OLLAMA_ERROR) for endpoint in table)


def model_endpoints(models: OllamaModels) -> tuple[Endpoint, ...]:
    return (
        Endpoint("GET", "/api/tags", models.tags, "The models, as Ollama lists them.", schema.TAGS),
        Endpoint("GET", "/api/ps", models.ps, "The models that workers have now.", schema.RUNNING),
        Endpoint(
            "POST",
            "/api/show",
            models.show_model,
            "A model, as Ollama describes it.",
            schema.SHOWN,
            SHOW,
            errors=BODY_ERRORS,
        ),
        Endpoint("GET", "/api/version", models.api_version, "The version of Ollama's API.", schema.VERSION),
        Endpoint(
            "GET",
            "/",
            models.root,
            "What Ollama's clients look for.",
            TEXT,
            door=RouteAccess.OPEN,
            content_type="text/plain; charset=utf-8",
        ),
    )
