# SPDX-License-Identifier: Apache-2.0
"""The table of all routes."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from sanic import HTTPResponse, Request

from pontil.http.access.endpoint import Endpoint, Handler, RouteAccess
from pontil.http.access.in_flight_bodies import InFlightBodies
from pontil.http.anthropic import schema as message
from pontil.http.anthropic.request import COUNT, MESSAGES
from pontil.http.anthropic.route import MessagesRoutes
from pontil.http.anthropic.thinking_seal import ThinkingSeal
from pontil.http.batch.endpoints import BatchRoutes
from pontil.http.intake.body import BODY_ERRORS, GENERATION_ERRORS, BodyReader, largest_body
from pontil.http.intake.grammar_check import GrammarCheck
from pontil.http.intake.guards import Intake
from pontil.http.intake.served_model import ServedModel
from pontil.http.ollama.endpoints import ollama_endpoints
from pontil.http.openai.chat.changing_lines import KNOWN_LINES
from pontil.http.openai.chat.prompt_reader import PromptReader
from pontil.http.openai.chat.request import CHAT
from pontil.http.openai.completions.request import COMPLETION
from pontil.http.openai.completions.route import GenerationRoutes, Preparation
from pontil.http.openai.embeddings.route import EMBEDDING, EMBEDDINGS, EmbeddingRoutes
from pontil.http.openai.embeddings.served_embedding import ServedEmbedding
from pontil.http.openai.responses import schema as shown
from pontil.http.openai.responses.conversations import Conversations
from pontil.http.openai.responses.request import RESPONSES
from pontil.http.openai.responses.route import ResponsesRoutes
from pontil.http.prefixes.route import PrefixRoutes
from pontil.http.routes import request_times as traced
from pontil.http.routes.openapi import OpenApiRoute
from pontil.http.routes.page import RoutedRoom
from pontil.http.routes.record_stream import RecordStream
from pontil.http.routes.request_times import RequestTimes
from pontil.http.routes.status import METRICS_TYPE, ModelList, StatusRoutes
from pontil.http.stream import reply_schema as reply
from pontil.http.stream.answer_checker import AnswerChecker
from pontil.http.vllm.adapters import AdapterRoutes
from pontil.http.vllm.chat_batch import CHAT_BATCH, ChatBatchRoutes
from pontil.http.vllm.compatibility import CompatibilityRoutes
from pontil.http.vllm.generate import GENERATE
from pontil.http.vllm.pair_request import RERANK, SCORE
from pontil.http.vllm.rerank import RANKED, SCORES, RerankRoutes
from pontil.http.vllm.served_reranker import ServedReranker
from pontil.http.vllm.tokenization import DETOKENIZE, TOKENIZE, TOKENIZE_CHAT, TokenRoutes
from pontil.runtime.chat.dialect import dialect_of
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.tokenizer.pair_encoder import PairEncoder
from pontil.runtime.tokenizer.tokenizer import Tokenizer

LOG = logging.getLogger("pontil.http")

KEPT = (400, 404, 503)


def endpoints(
    proxy: Proxy,
    intake: Intake,
    answers: AnswerChecker,
    conversations: Conversations,
    page: RoutedRoom,
    embedding: Tokenizer | None = None,
    pairs: PairEncoder | None = None,
) -> tuple[Endpoint, ...]:
    """Return all routes. `embedding` is the tokenizer of the embedding model, and `pairs` that of the model that scores
    pairs of texts, where there are such models."""
    config = proxy.config
    generating = [ServedModel(proxy, key) for key in (None, *config.further_names)]
    bodies = body_reader(proxy, generating, intake.in_flight)
    routes = generation_routes([preparation_of(model, intake.grammars) for model in generating], bodies, answers)
    embedder, ranker = ServedEmbedding.of(proxy, embedding), ServedReranker.with_pairs(proxy, pairs)
    vectors, models = EmbeddingRoutes(proxy, embedder, bodies), ModelList(generating, embedder, ranker)
    tokens, status = token_routes(routes), StatusRoutes(proxy)
    responses, messages = ResponsesRoutes(routes, conversations), MessagesRoutes(routes, ThinkingSeal.of(config))
    lines = line_handlers(routes, responses, messages, None if embedder is None else vectors, intake.in_flight)
    resumable = routes.resumable.serving
    table = (
        Endpoint("POST", "/v1/completions", resumable(routes.completions), "Continue texts.", reply.COMPLETION,
                 COMPLETION, reply.COMPLETION_CHUNK, GENERATION_ERRORS),
        Endpoint("POST", "/v1/chat/completions", resumable(routes.chat), "Answer a conversation.", reply.CHAT,
                 CHAT, reply.CHAT_CHUNK, GENERATION_ERRORS),
        *response_endpoints(responses),
        *message_endpoints(messages),
        *ollama_endpoints(routes, vectors),
        Endpoint("POST", "/v1/embeddings", vectors.embeddings, "Vectors of texts.", EMBEDDINGS, EMBEDDING,
                 errors=GENERATION_ERRORS),
        *rerank_endpoints(RerankRoutes(proxy, ranker, bodies)),
        *BatchRoutes(proxy, lines, bodies, intake.knows).endpoints(),
        *routes.sounds.endpoints(),
        *PrefixRoutes(routes).endpoints(),
        *AdapterRoutes(routes.model, bodies).endpoints(),
        *token_endpoints(tokens),
        Endpoint("GET", "/v1/models", models.models, "The models that are served.", reply.MODELS),
        Endpoint("GET", "/v1/models/{name}", models.one_model, "One of them, by its name.", reply.MODEL, errors=(404,)),
        Endpoint("GET", "/health", status.health, "Whether the server is alive.", reply.STATUS, door=RouteAccess.OPEN),
        Endpoint("GET", "/ready", status.ready, "Whether a request can be served now.", reply.STATUS, errors=(503,),
                 door=RouteAccess.OPEN),
        Endpoint("GET", "/metrics", status.metrics, "Metrics for Prometheus.", reply.TEXT, content_type=METRICS_TYPE),
        Endpoint("GET", "/version", status.version, "The version of this program.", reply.VERSION),
        *compatibility_endpoints(CompatibilityRoutes(routes), ChatBatchRoutes(routes)),
        Endpoint("GET", "/admin/topology", status.topology, "The processes and their states.", reply.TOPOLOGY,
                 door=RouteAccess.ADMIN),
        *timeline_endpoints(RequestTimes(proxy)),
        RecordStream(routes).endpoint,
        Endpoint("GET", "/admin/ledger", status.ledger, "The sums of the ledger.", reply.ANY_OBJECT,
                 door=RouteAccess.ADMIN),
        *page.endpoints(bodies),
    )  # fmt: skip
    key_kinds = frozenset(kind for kind, keys in (("key", config.callers), ("admin", config.admin)) if keys)
    openapi = OpenApiRoute(
        table, config.version, routes.model.vocab_size, asked=key_kinds, strict=config.strict_parameters
    )
    return tuple(recorded(endpoint, intake.in_flight) for endpoint in (*table, openapi.own))


def preparation_of(model: ServedModel, grammars: GrammarCheck) -> Preparation:
    config, options = model.proxy.config, model.options
    dialect = dialect_of(model.tokenizer, options.tool_call_parser, options.reasoning_parser)
    LOG.info("%s", dialect if model.key is None else f"{model.name}: {dialect}")
    prompts = PromptReader(model.tokenizer, dialect, KNOWN_LINES if config.stable_prompts else ())
    return Preparation(model.proxy, model, prompts, grammars)


def generation_routes(
    preparations: Sequence[Preparation], bodies: BodyReader, answers: AnswerChecker
) -> GenerationRoutes:
    """Return the routes of the first model, beside which the others are."""
    first, *further = preparations
    return GenerationRoutes(first, bodies, answers, [GenerationRoutes(one, bodies, answers) for one in further])


def token_routes(routes: GenerationRoutes) -> TokenRoutes:
    beside = [TokenRoutes(one.model, one.prompts, one.bodies) for one in routes.beside]
    return TokenRoutes(routes.model, routes.prompts, routes.bodies, beside)


def body_reader(proxy: Proxy, models: Sequence[ServedModel], bodies: InFlightBodies) -> BodyReader:
    """Return the reader of bodies, whose limit follows the longest context of a model where no option states one."""
    config = proxy.config
    # A recording or an image takes more room than its text.
    hears = proxy.graph is not None and (proxy.graph.recognizer or proxy.graph.encoder) is not None
    return BodyReader(
        lambda: config.max_body_size or largest_body(None if hears else longest_context(models)),
        bodies,
        config.strict_parameters,
    )


def longest_context(models: Sequence[ServedModel]) -> int | None:
    """Return the longest context of these models; None while one of them has no worker that says its own."""
    contexts = [model.known_context for model in models]
    known = [context for context in contexts if context is not None]
    return max(known) if len(known) == len(contexts) else None


def line_handlers(
    routes: GenerationRoutes,
    responses: ResponsesRoutes,
    messages: MessagesRoutes,
    vectors: EmbeddingRoutes | None,
    bodies: InFlightBodies,
) -> dict[str, Handler]:
    """Return the handlers that lines of batches may ask, by path."""
    handlers = {
        "/v1/chat/completions": routes.chat,
        "/v1/completions": routes.completions,
        "/v1/responses": responses.create_response,
        "/v1/messages": messages.create_message,
    } | ({} if vectors is None else {"/v1/embeddings": vectors.embeddings})
    return {path: bodies.recorded(handler) for path, handler in handlers.items()}


def recorded(endpoint: Endpoint, bodies: InFlightBodies) -> Endpoint:
    """Return the route with its bodies recorded while they are read, where it takes any."""
    return endpoint if endpoint.takes is None else replace(endpoint, handler=bodies.recorded(endpoint.handler))


def rerank_endpoints(routes: RerankRoutes) -> tuple[Endpoint, ...]:
    """Return the routes by all paths that their clients know."""
    ranks = {"/v1/rerank": "rerank", "/v2/rerank": "rerank_v2", "/rerank": "rerank_plain"}
    scores = {"/v1/score": "score", "/score": "score_plain"}
    return (
        *(
            Endpoint(
                "POST", path, named(name, routes.rerank), "Rank documents.", RANKED, RERANK, errors=GENERATION_ERRORS
            )
            for path, name in ranks.items()
        ),
        *(
            Endpoint(
                "POST",
                path,
                named(name, routes.score),
                "Score pairs of texts.",
                SCORES,
                SCORE,
                errors=GENERATION_ERRORS,
            )
            for path, name in scores.items()
        ),
    )


def token_endpoints(tokens: TokenRoutes) -> tuple[Endpoint, ...]:
    return (
        Endpoint(
            "POST",
            "/tokenize",
            tokens.tokenize,
            "Token ids of a text or a conversation.",
            reply.TOKENIZED,
            (*TOKENIZE, *TOKENIZE_CHAT),
            errors=BODY_ERRORS,
        ),
        Endpoint(
            "POST",
            "/detokenize",
            tokens.detokenize,
            "The text of token ids.",
            reply.DETOKENIZED,
            DETOKENIZE,
            errors=BODY_ERRORS,
        ),
    )


def named(name: str, handler: Handler) -> Handler:
    """Return a handler by another name: those of two paths must differ."""

    async def answer(request: Request) -> HTTPResponse | None:
        return await handler(request)

    answer.__name__ = name
    return answer


def timeline_endpoints(times: RequestTimes) -> tuple[Endpoint, ...]:
    return (
        Endpoint("GET", "/admin/requests", times.list_requests, "The latest requests.", traced.REQUESTS,
                 door=RouteAccess.ADMIN),
        Endpoint("GET", "/admin/requests/{request_id}", times.show_request, "Where a request's time went.",
                 traced.TIMELINES, errors=(404,), door=RouteAccess.ADMIN),
    )  # fmt: skip


def response_endpoints(responses: ResponsesRoutes) -> tuple[Endpoint, ...]:
    return (
        Endpoint("POST", "/v1/responses", responses.create_response, "Make a response.", shown.RESPONSE,
                 RESPONSES, shown.EVENT, GENERATION_ERRORS),
        Endpoint("POST", "/v1/responses/input_tokens", responses.count_input_tokens, "Count a response's "
                 "input.", shown.INPUT_TOKENS, RESPONSES, errors=GENERATION_ERRORS),
        Endpoint("GET", "/v1/responses/{response_id}", responses.get_response, "A response that is kept.",
                 shown.RESPONSE, errors=KEPT, asks=(("stream", {"const": "false"}),)),
        Endpoint("DELETE", "/v1/responses/{response_id}", responses.delete_response, "Forget a response.",
                 shown.DELETED, errors=KEPT),
        Endpoint("POST", "/v1/responses/{response_id}/cancel", responses.cancel_response, "Refused: responses in the "
                 "background are not supported.", shown.RESPONSE, errors=KEPT),
        Endpoint("GET", "/v1/responses/{response_id}/input_items", responses.list_input_items, "What a response "
                 "answers, with the conversation before it.", shown.INPUT_ITEMS, errors=KEPT, asks=shown.PAGE),
    )  # fmt: skip


def message_endpoints(messages: MessagesRoutes) -> tuple[Endpoint, ...]:
    resumable = messages.generation.resumable.serving
    return (
        Endpoint(
            "POST",
            "/v1/messages",
            resumable(messages.create_message),
            "Answer a conversation, as Anthropic does.",
            message.MESSAGE,
            MESSAGES,
            message.EVENT,
            GENERATION_ERRORS,
            error=message.MESSAGES_ERROR,
        ),
        Endpoint(
            "POST",
            "/v1/messages/count_tokens",
            messages.count_tokens,
            "Count the tokens of such a conversation.",
            message.INPUT_TOKENS,
            COUNT,
            errors=GENERATION_ERRORS,
            error=message.MESSAGES_ERROR,
        ),
    )


def compatibility_endpoints(routes: CompatibilityRoutes, batches: ChatBatchRoutes) -> tuple[Endpoint, ...]:
    return (
        Endpoint("POST", "/v1/chat/completions/batch", batches.chat_batch, "Answer several conversations.",
                 reply.CHAT_BATCH, CHAT_BATCH, errors=GENERATION_ERRORS),
        Endpoint("POST", "/v1/chat/completions/render", routes.render, "The prompt of a conversation.",
                 reply.RENDERED, CHAT, errors=GENERATION_ERRORS),
        Endpoint("POST", "/invocations", routes.invocations, "Answer a conversation, or continue texts.",
                 {"anyOf": [reply.CHAT, reply.COMPLETION]}, CHAT,
                 {"anyOf": [reply.CHAT_CHUNK, reply.COMPLETION_CHUNK]}, GENERATION_ERRORS, alternative=COMPLETION),
        Endpoint("POST", "/generate", routes.generate, "Continue a text, as SGLang does.", reply.GENERATED,
                 GENERATE, reply.GENERATED, GENERATION_ERRORS),
        Endpoint("GET", "/ping", routes.ping, "Whether the server is alive.", reply.STATUS, door=RouteAccess.OPEN),
        Endpoint("GET", "/load", routes.load, "How many requests are in flight.", reply.SERVER_LOAD),
        Endpoint("GET", "/tokenizer_info", routes.tokenizer_info, "The tokenizer.", reply.TOKENIZER),
        Endpoint("GET", "/get_model_info", routes.get_model_info, "The model, as SGLang describes it.",
                 reply.MODEL_INFO),
    )  # fmt: skip
