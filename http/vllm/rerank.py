# SPDX-License-Identifier: Apache-2.0
"""The endpoints that rank documents and score pairs of texts."""

import json
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from sanic import HTTPResponse, Request
from sanic.response import raw

from pontil.http.intake.body import BodyReader, understood
from pontil.http.intake.ordered_executor import OrderedExecutor
from pontil.http.intake.served_model import check_name
from pontil.http.openai.chat.prompt_reader import SHORT_TEXT, TextLimit, maximum
from pontil.http.stream.receipts import check_no_receipt
from pontil.http.stream.reply import route_of
from pontil.http.stream.reply_schema import COUNT, NUMBER, TEXT, closed, constant, many
from pontil.http.vllm.pair_request import PairRequest, RerankRequest, read_rerank, read_score
from pontil.http.vllm.served_reranker import ServedReranker
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.admission.control import check_together
from pontil.runtime.proxy.portions import submit_in_portions
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.text_embedding import PairScore
from pontil.runtime.tokenizer.pair_encoder import PairEncoder, TextPair

COUNTS = {"prompt_tokens": COUNT, "total_tokens": COUNT}
RANKED = closed(
    {
        "id": TEXT,
        "object": constant("list"),
        "model": TEXT,
        "results": many(
            closed({"index": COUNT, "relevance_score": NUMBER, "document": closed({"text": TEXT})}, ("document",))
        ),
        "usage": closed(COUNTS),
        "meta": closed(
            {
                "billed_units": closed({"input_tokens": COUNT}),
                "tokens": closed({"input_tokens": COUNT, "output_tokens": COUNT}),
            }
        ),
    }
)
SCORES = closed(
    {
        "id": TEXT,
        "object": constant("list"),
        "created": COUNT,
        "model": TEXT,
        "data": many(closed({"index": COUNT, "object": constant("score"), "score": NUMBER})),
        "usage": closed(COUNTS | {"completion_tokens": COUNT}),
    }
)
# Tokens of one query, and characters of an instruction, that the pairs of a request repeat: each is computed anew, so
# that a small body would else ask for any amount of work.
MOST_REPEATED = 1 << 20
# Pairs, and characters of documents, that are written without a thread.
FEW_PAIRS, FEW_CHARACTERS = 256, 1 << 16

T = TypeVar("T")


class RerankRoutes:
    """The handlers over one proxy. `served` is None where no model that scores is."""

    def __init__(self, proxy: Proxy, served: ServedReranker | None, bodies: BodyReader) -> None:
        self.proxy, self.served, self.bodies = proxy, served, bodies
        self.executor = OrderedExecutor()

    async def rerank(self, request: Request) -> HTTPResponse:
        served_model, rerank_request = await self.read(request, read_rerank)
        stream, works = await self.scored(request, rerank_request.pairs, served_model)
        write = partial(ranking, rerank_request, [work.score for work in works], self.heading(served_model), stream)
        size = len(works)
        if rerank_request.with_documents:
            size += sum(map(len, rerank_request.pairs.second.texts)) * FEW_PAIRS // FEW_CHARACTERS
        return await self.answer(write, size, stream)

    async def score(self, request: Request) -> HTTPResponse:
        served_model, pairs = await self.read(request, read_score)
        stream, works = await self.scored(request, pairs, served_model)
        write = partial(score_list, [work.score for work in works], self.heading(served_model), stream)
        return await self.answer(write, len(works), stream)

    async def read(self, request: Request, parse: Callable[..., T]) -> tuple[ServedReranker, T]:
        check_no_receipt(request, "a score of texts")
        if self.served is None:
            says = "no model here scores texts: start the server with --rerank and --reranking-model"
            raise RequestError(says, status=404, code="not_supported")
        return self.served, await self.bodies.read(request, partial(parse, ignored=self.bodies.ignored(request)))

    async def scored(
        self, request: Request, pair_request: PairRequest, served_model: ServedReranker
    ) -> tuple[Stream, list[PairScore]]:
        """Have the pairs scored, each as a request of its own; return when all are. What has no reader any more is
        cancelled."""
        check_name(self.proxy.config, pair_request.model, served_model.name, status=400)
        ticket = pair_request.handling.complete(request.ctx.ticket, share_prefixes=self.proxy.config.share_prefixes)
        snapshot, second = served_model.snapshot, pair_request.second
        check_together(snapshot.workers, len(second.texts), second.name, named="pairs")
        self.proxy.admissions.check_limits(ticket, len(second.texts))
        pairs = await self.encode(pair_request, served_model, snapshot.context_length)
        understood(request)
        works = [PairScore(pair.ids, served_model.name, types=pair.types) for pair in pairs]
        stream = await submit_in_portions(self.proxy, ticket, works, snapshot)
        try:
            await stream.all()
            await stream.settled()
        finally:
            stream.cancel()
        return stream, works

    async def encode(self, pair_request: PairRequest, served_model: ServedReranker, context: int) -> list[TextPair]:
        """Tokenize the pairs and fit them to the context, in a thread unless they are short."""
        limit = TextLimit(context, pair_request.handling.is_whole and pair_request.most_of_second is None)
        size = 0
        for named in (pair_request.first, pair_request.second):
            for index, text in enumerate(named.texts):
                served_model.encoder.check(text, named.place(index), limit)
                size += len(text)
        work = partial(encode_pairs, pair_request, served_model.pairs, context)
        return await self.executor.run(work, size) if size > SHORT_TEXT else work()

    def heading(self, served_model: ServedReranker) -> dict[str, Any]:
        return {"id": secrets.token_hex(12), "object": "list", "model": served_model.name}

    async def answer(self, write: Callable[[], bytes], size: int, stream: Stream) -> HTTPResponse:
        body = await self.executor.run(write, size) if size > FEW_PAIRS else write()
        return raw(body, content_type="application/json", headers=route_of(stream))


def encode_pairs(pair_request: PairRequest, pairs: PairEncoder, context: int) -> list[TextPair]:
    """Tokenize and cut the pairs. Raises RequestError for one that does not fit the context."""
    first, second = pair_request.first, pair_request.second
    check_repeats("instruction", len(pair_request.instruction or ""), len(first.texts), "characters")
    starts = [pairs.first(text, pair_request.instruction) for text in first.texts]
    if len(starts) < len(second.texts):
        check_repeats(first.name, len(starts[0]), len(second.texts), "tokens")
    encoded_pairs = []
    for index, text in enumerate(second.texts):
        start = starts[pair_request.first_of(index)]
        end = shortened(pair_request, pairs, len(start), pairs.second(text), context)
        pair = pairs.pair(start, end)
        if len(pair.ids) > context:
            says = f"{maximum(context)} However, {second.place(index)} has {len(pair.ids)} with its {first.name}: "
            says += "shorten it, or have it cut by max_tokens_per_doc, or by truncate_prompt_tokens: -1"
            raise RequestError(says, param=second.name, code="context_length_exceeded")
        encoded_pairs.append(pair)
    return encoded_pairs


def check_repeats(name: str, size: int, count: int, unit: str) -> None:
    if count > 1 and size * count > MOST_REPEATED:
        says = f"{name} has {size} {unit}, which {count} pairs repeat, and {MOST_REPEATED} are all that is taken"
        raise RequestError(f"{says}: send fewer pairs at once, or shorten it", param=name)


def shortened(pair_request: PairRequest, pairs: PairEncoder, start: int, end: list[int], context: int) -> list[int]:
    """Cut a second text, whose first one has `start` tokens. Raises RequestError where no token of it has room."""
    if pair_request.most_of_second is not None:
        end = end[: pairs.label + pair_request.most_of_second]
    truncate = pair_request.handling.truncate
    if truncate is None:
        return end
    most = context if truncate < 0 else min(truncate, context)
    room = most - pairs.around - start
    if room <= pairs.label:
        name = pair_request.first.name
        says = f"{name} leaves no room for another text in {most} tokens: shorten it, or raise truncate_prompt_tokens"
        raise RequestError(says, param=name, code="context_length_exceeded")
    return end[:room]


def ranking(rerank_request: RerankRequest, scores: Sequence[float], heading: dict[str, Any], stream: Stream) -> bytes:
    """Write the best documents, in the order of their scores; equal ones in the order in which they were given."""
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: rerank_request.top_n]
    texts = rerank_request.pairs.second.texts
    results = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": texts[index]}} if rerank_request.with_documents else {})
        for index in order
    ]
    tokens = stream.final_usage.prompt_tokens
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    meta = {"billed_units": {"input_tokens": tokens}, "tokens": {"input_tokens": tokens, "output_tokens": 0}}
    head = heading | {"id": f"rerank-{heading['id']}"}
    return json.dumps(head | {"results": results, "usage": usage, "meta": meta}).encode()


def score_list(scores: Sequence[float], heading: dict[str, Any], stream: Stream) -> bytes:
    """Write the scores in the order of the pairs."""
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    tokens = stream.final_usage.prompt_tokens
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    head = heading | {"id": f"score-{heading['id']}", "created": int(time.time())}
    return json.dumps(head | {"data": data, "usage": usage}).encode()
