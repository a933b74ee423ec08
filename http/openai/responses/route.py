# SPDX-License-Identifier: Apache-2.0
"""The endpoints of OpenAI's Responses API, over the path of a chat."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import json as json_response
from sanic.response import raw

from pontil.http.fields.kv_transfer import NAME as KV_PARAMS
from pontil.http.openai.completions.ready_request import ReadyChat
from pontil.http.openai.completions.remote_prompt import remote_kv
from pontil.http.openai.completions.route import GenerationRoutes
from pontil.http.openai.responses.conversations import Conversations
from pontil.http.openai.responses.input_items import Item
from pontil.http.openai.responses.request import ResponsesRequest, read_responses
from pontil.http.openai.responses.shape import PREFIX, ResponsesShape
from pontil.http.store.response_store import KeptResponse
from pontil.http.stream.reply import AnswerEnd
from pontil.runtime.errors import RequestError

MOST_LISTED, LISTED = 100, 20


class ResponsesRoutes:
    """Handlers over the ones of a chat, and the responses that are kept."""

    def __init__(self, generation: GenerationRoutes, kept: Conversations) -> None:
        self.generation, self.kept = generation, kept

    async def create_response(self, request: Request) -> HTTPResponse | None:
        responses_request, own_items, ready = await self.prepare(request, is_limited=True)
        generation = self.generation.chosen(request)
        shape = self.shape(request, responses_request, ready)
        keep = partial(self.keep, ready.ticket.caller, responses_request, own_items, shape)
        return await generation.send(request, ready, shape, keep)

    async def count_input_tokens(self, request: Request) -> HTTPResponse:
        _, _, ready = await self.prepare(request)
        return json_response({"object": "response.input_tokens", "input_tokens": len(ready.works[0].prompt)})

    async def prepare(
        self, request: Request, is_limited: bool = False
    ) -> tuple[ResponsesRequest, list[Item], ReadyChat]:
        """Return the request, its own items with references resolved, and the chat that it stands for. One that is
        `is_limited` counts against the limits of its key."""
        responses_request = await self.generation.read(request, read_responses)
        generation = self.generation.chosen(request)
        # Before any kept response is read.
        ticket = generation.preparation.complete(request.ctx.ticket, responses_request.chat)
        if is_limited:
            generation.proxy.admissions.check_limits(ticket)
        before, own_items = await self.kept.history(ticket.caller, responses_request.previous, responses_request.items)
        make = partial(responses_request.with_history, (*before, *own_items))
        chat = await generation.prompts.executor.run(make, 0) if before or responses_request.is_long else make()
        generation.sounds.check(chat, request)
        if chat.prompt.media and not is_limited:
            # Images are fetched and decoded for a count as for an answer.
            generation.proxy.admissions.admit_to_rate(ticket)
        chat = chat.heard(await generation.sounds.heard(chat.prompt, ticket))
        remote = remote_kv(generation.proxy, chat.kv_transfer, chat.sampling, ticket.name) if is_limited else None
        return responses_request, own_items, await generation.preparation.chat(ticket, chat, "input", remote)

    def shape(self, request: Request, responses_request: ResponsesRequest, ready: ReadyChat) -> ResponsesShape:
        generation = self.generation.chosen(request)
        shown_text = generation.shown(ready.sampling)
        heading = replace(generation.heading(request, "resp-", ready), id=PREFIX + secrets.token_hex(16))
        is_stored = responses_request.store and self.kept.store is not None
        echo_fields, is_streamed = responses_request.echoed | {"store": is_stored}, ready.wanted.delivery.stream
        make_reader, origins = partial(generation.answer_reader, ready), responses_request.origins
        return ResponsesShape(heading, echo_fields, is_streamed, shown_text, make_reader, origins, ready.prompt_details)

    async def keep(
        self,
        caller: str,
        responses_request: ResponsesRequest,
        own_items: Sequence[Item],
        shape: ResponsesShape,
        end: AnswerEnd,
    ) -> None:
        """Keep a response where that is wanted. One that could not be kept says so."""
        answer = shape.complete(end.usage, end.verdicts)
        if not answer["store"]:
            return
        items = [{"id": f"in_{shape.output.token}{index:04x}"} | item for index, item in enumerate(own_items)]
        # Where the prompt is kept is told once, and names hosts inside the system.
        whole = {name: value for name, value in answer.items() if name != KV_PARAMS} | {"output": []}
        kept_response = KeptResponse(answer["id"], responses_request.previous, whole, items, answer["output"])
        answer["store"] = await self.kept.keep(caller, kept_response, responses_request.characters)

    async def get_response(self, request: Request, response_id: str) -> HTTPResponse:
        if request.args.get("stream", "false").lower() not in ("false", "0"):
            raise RequestError("stream is for responses in the background, which are not supported", param="stream")
        return raw(await self.kept.response(request.ctx.ticket.caller, response_id), content_type="application/json")

    async def delete_response(self, request: Request, response_id: str) -> HTTPResponse:
        await self.kept.remove(request.ctx.ticket.caller, response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel_response(self, request: Request, response_id: str) -> HTTPResponse:
        """Refuse: a response is complete once it is kept."""
        await self.kept.response(request.ctx.ticket.caller, response_id)
        says = "Cannot cancel a synchronous response: close its connection while it is made"
        raise RequestError(says, param="response_id")

    async def list_input_items(self, request: Request, response_id: str) -> HTTPResponse:
        select_page = partial(page, *page_wanted(request))
        body = await self.kept.input_items(request.ctx.ticket.caller, response_id, select_page)
        return raw(body, content_type="application/json")


def page_wanted(request: Request) -> tuple[int, bool, str | None]:
    """Return the limit, whether the newest items come first, and the item behind which the page begins."""
    limit, order = request.args.get("limit", str(LISTED)), request.args.get("order", "desc")
    if not (limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= MOST_LISTED):
        raise RequestError(f"limit must be between 1 and {MOST_LISTED}", param="limit")
    if order not in ("asc", "desc"):
        raise RequestError("order must be asc or desc", param="order")
    return int(limit), order == "desc", request.args.get("after")


def page(limit: int, newest_first: bool, after: str | None, items: list[Item]) -> dict[str, Any]:
    """Return one page of a list. Raises RequestError for a page behind an item that is not in it."""
    ordered_items = items[::-1] if newest_first else items
    names = [item["id"] for item in ordered_items]
    if after is not None and after not in names:
        raise RequestError(f"Item with id {after!r:.100} not found in this list", status=404, param="after")
    start = 0 if after is None else names.index(after) + 1
    page_items = ordered_items[start : start + limit]
    ends = {
        "first_id": page_items[0]["id"] if page_items else None,
        "last_id": page_items[-1]["id"] if page_items else None,
    }
    return {"object": "list", "data": page_items} | ends | {"has_more": start + limit < len(ordered_items)}
