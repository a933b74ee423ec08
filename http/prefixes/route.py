# SPDX-License-Identifier: Apache-2.0
"""The routes of leases on prefixes."""

import time
from dataclasses import replace
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import json as json_response

from pontil.http.access.endpoint import Endpoint
from pontil.http.fields.recording import HeardMedia
from pontil.http.fields.service_tier import class_usage, told_class
from pontil.http.intake.body import GENERATION_ERRORS, understood
from pontil.http.openai.chat.prompt_reader import PromptReader, TextLimit, token_budget
from pontil.http.openai.completions.route import GenerationRoutes
from pontil.http.prefixes.request import EXTENSION, PREFIX, PrefixWanted, read_extension, read_prefix
from pontil.http.prefixes.schema import PREFIX as PREFIX_SCHEMA
from pontil.http.prefixes.schema import PREFIXES
from pontil.http.stream.receipts import check_no_receipt
from pontil.http.stream.usage_shape import usage_object
from pontil.runtime.errors import RequestError, TooManyRequests
from pontil.runtime.proxy.leases.fleet_leases import FleetLeases
from pontil.runtime.proxy.leases.lease_view import LeaseView
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.sampling_params import SamplingParams

# Of a prompt that is only to be kept nothing is generated.
NOTHING_DRAWN = SamplingParams(max_tokens=0, seed=0, temperature=0.0)
FOUND, MADE = (400, 404, 409), (*GENERATION_ERRORS, 409)
MOST_LISTED = 1000


class PrefixRoutes:
    """Handlers over one proxy. A lease is its key's: to others it is not there."""

    def __init__(self, generation: GenerationRoutes) -> None:
        self.generation, self.proxy = generation, generation.proxy

    @property
    def leases(self) -> FleetLeases:
        return self.proxy.leases

    def endpoints(self) -> tuple[Endpoint, ...]:
        path = "/v1/prefixes"
        return (
            Endpoint(
                "POST",
                path,
                self.create_prefix,
                "Keep the KV of a prompt's beginning for a time.",
                PREFIX_SCHEMA,
                PREFIX,
                errors=MADE,
            ),
            Endpoint("GET", path, self.list_prefixes, "The prefixes that are kept.", PREFIXES),
            Endpoint(
                "GET",
                path + "/{prefix_id}",
                self.get_prefix,
                "One of them, or one that is over.",
                PREFIX_SCHEMA,
                errors=FOUND,
            ),
            Endpoint(
                "PATCH",
                path + "/{prefix_id}",
                self.extend_prefix,
                "Keep it for longer.",
                PREFIX_SCHEMA,
                EXTENSION,
                errors=MADE,
            ),
            Endpoint(
                "DELETE", path + "/{prefix_id}", self.delete_prefix, "Keep it no longer.", PREFIX_SCHEMA, errors=FOUND
            ),
        )

    async def create_prefix(self, request: Request) -> HTTPResponse:
        """Compute a prompt if need be, and keep it. It is granted or refused at once, with figures."""
        check_no_receipt(request, "a lease on a prefix")
        wanted = await self.generation.read(request, read_prefix)
        chosen = self.generation.chosen(request)
        model = chosen.model
        adapter = model.check(wanted.model)
        ticket = wanted.handling.complete(request.ctx.ticket, share_prefixes=self.proxy.config.share_prefixes)
        ticket = replace(ticket, adapter=adapter)
        shown = HeardMedia({})
        if wanted.chat is not None:
            chosen.sounds.check_media(wanted.chat)
        self.proxy.admissions.check_limits(ticket)
        if wanted.chat is not None:
            shown = await chosen.sounds.heard(wanted.chat, ticket)
            wanted = replace(wanted, chat=wanted.chat.heard(shown.texts))
        snapshot = await chosen.preparation.snapshot(ticket)
        ids = await self.prompt_ids(chosen.prompts, wanted, TextLimit(snapshot.known_context))
        ids = ids if shown.media is None else shown.media.expanded(ids)
        name = "prompt" if wanted.chat is None else "messages"
        token_budget(len(ids), None, 0, snapshot.context_length, (name, "max_tokens"))
        self.leases.quota.check(model.key, ticket.caller, len(ids), self.proxy.clock())
        understood(request)
        wish = self.leases.wish(model.key, ticket.caller, wanted.seconds, len(ids), must=True)
        work = Generation(ids, NOTHING_DRAWN, wish=wish, further=model.key)
        asked = work if shown.media is None else shown.media.work(work)
        stream = self.proxy.submit(ticket, asked, snapshot=snapshot)
        view = None
        try:
            await stream.all()
            await stream.settled()
            view = self.leases.granted(wish)
        except RequestError as error:
            # A worker has less room than was known, of which it has said so by now.
            if error.status != 429:
                raise
            raise TooManyRequests(str(error), self.leases.quota.soon) from None
        finally:
            stream.cancel()
            if view is None:
                self.leases.disown(wish)
        of_class = class_usage(*told_class(ticket, self.proxy.config.fair_by))
        return json_response(self.shown(view) | {"usage": usage_object(stream.final_usage) | of_class})

    async def prompt_ids(self, prompts: PromptReader, wanted: PrefixWanted, limit: TextLimit) -> list[int]:
        special = wanted.handling.add_special_tokens
        if wanted.chat is not None:
            return (await prompts.chat(wanted.chat, limit, special)).ids
        if isinstance(wanted.prompt, str):
            return await prompts.text_ids(wanted.prompt, limit, special)
        return list(wanted.prompt or ())

    async def list_prefixes(self, request: Request) -> HTTPResponse:
        views = self.leases.owned_by(request.ctx.ticket.caller)[:MOST_LISTED]
        return json_response({"object": "list", "data": [self.shown(view) for view in views]})

    async def get_prefix(self, request: Request, prefix_id: str) -> HTTPResponse:
        return json_response(self.shown(self.found(request, prefix_id)))

    async def extend_prefix(self, request: Request, prefix_id: str) -> HTTPResponse:
        seconds = await self.generation.read(request, read_extension)
        view = self.found(request, prefix_id)
        self.leases.extend(view, seconds)
        return json_response(self.shown(view))

    async def delete_prefix(self, request: Request, prefix_id: str) -> HTTPResponse:
        view = self.found(request, prefix_id)
        self.leases.release(view)
        return json_response(self.shown(view))

    def found(self, request: Request, prefix_id: str) -> LeaseView:
        return self.leases.find(request.ctx.ticket.caller, prefix_id)

    def shown(self, view: LeaseView) -> dict[str, Any]:
        """Return a lease as clients see it. Its times are by the clock of this host, which may be set: it lasts by one
        that is not."""
        now, term = self.proxy.clock(), view.term
        amounts = term.amounts(now)
        names = ("granted", "held", "released", "refunded")
        until = term.end - now if term.ended is None else term.ended - now
        return {
            "id": view.id,
            "object": "prefix",
            "model": self.leases.model_of(view),
            "state": "moving" if self.leases.is_moving(view) else term.state,
            "reason": term.reason,
            "tokens": view.tokens,
            "bytes": term.size,
            "ttl": term.seconds,
            "created_at": int(view.since_epoch),
            "expires_at": int(time.time() + until),
            "byte_seconds": {name: getattr(amounts, name) for name in names},
        }
