# SPDX-License-Identifier: Apache-2.0
"""The endpoints of batches of Anthropic's Messages API."""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import json as json_response

from pontil.http.batch.book_reader import check_room
from pontil.http.batch.files_route import MOST_LINES, page_wanted, send_contents
from pontil.http.batch.input_lines import MOST_CUSTOM_ID
from pontil.http.batch.making import Batches, BatchWish
from pontil.http.batch.objects import message_batch_object
from pontil.http.batch.outcome_lines import json_bytes
from pontil.http.intake.body import BodyReader, understood
from pontil.http.schema.parameter import Parameter, ParameterTable, Schema, opened
from pontil.http.schema.parameter_types import ShapedType
from pontil.http.schema.reader import Fields, IgnoredFields, shown
from pontil.http.store.batch_book import MESSAGES, BatchRow, FileRow, ListPage
from pontil.http.store.outcome_files import write
from pontil.runtime.errors import RequestError

ENDPOINT = "/v1/messages"
# As Anthropic: a batch has a day.
DAY = 86400
MOST_LISTED, LISTED = 1000, 20


def read_lines(fields: Fields, name: str) -> list[tuple[str, Mapping[str, Any]]]:
    lines, names = [], set()
    for item in fields.objects(name, MOST_LINES):
        custom_id, params = item.required_text("custom_id"), item.required_object("params")
        if not 0 < len(custom_id) <= MOST_CUSTOM_ID:
            raise item.wrong("custom_id", f"must have 1 to {MOST_CUSTOM_ID} characters")
        if custom_id in names:
            raise item.wrong("custom_id", f"is {shown(custom_id)}, which an earlier request has: give its own")
        names.add(custom_id)
        lines.append((custom_id, params.data))
    if not lines:
        raise fields.wrong(name, "is empty: give at least one request")
    return lines


LINES_SCHEMA: Schema = {
    "title": f"requests, at most {MOST_LINES}",
    "type": "array",
    "items": opened(["custom_id", "params"], custom_id={"type": "string"}, params={"type": "object"}),
    "minItems": 1,
    "maxItems": MOST_LINES,
}
MESSAGE_BATCH = (
    Parameter("requests", ShapedType(read_lines, LINES_SCHEMA), "messages, each by its custom_id", required=True),
)
TABLE = ParameterTable(MESSAGE_BATCH)


def read_message_batch(data: Mapping[str, Any], ignored: IgnoredFields | None = None) -> tuple[int, bytes]:
    """Return the number of lines, and the file that holds them. Raises RequestError."""
    lines = TABLE.read(Fields(data, ignored=ignored))["requests"]
    return len(lines), b"".join(json_bytes({"custom_id": name, "params": params}) + b"\n" for name, params in lines)


class MessageBatchesRoutes:
    """Handlers over the batches, of which each caller sees its own."""

    def __init__(self, batches: Batches, bodies: BodyReader) -> None:
        self.batches, self.bodies = batches, bodies

    async def create_message_batch(self, request: Request) -> HTTPResponse:
        parser = partial(read_message_batch, ignored=self.bodies.ignored(request))
        lines, contents = await self.bodies.read(request, parser)
        understood(request)
        caller = request.ctx.ticket.caller
        name = f"file-{secrets.token_hex(16)}"
        row = FileRow(name, caller, f"{name}.jsonl", MESSAGES, len(contents), lines, int(time.time()))
        await self.batches.reader.run(partial(self.keep, row, contents), len(contents))
        batch = await self.batches.make(request.ctx.ticket, BatchWish(MESSAGES, ENDPOINT, row, DAY, "null"))
        return await self.shown(request, batch)

    def keep(self, row: FileRow, contents: bytes) -> None:
        """Keep the lines of a batch as a file. Blocks."""
        book = self.batches.book
        check_room(book, row.caller, row.size)
        descriptor = book.create(row.id)
        try:
            write(descriptor, contents, 0)
            os.fsync(descriptor)
            book.add(row)
        finally:
            os.close(descriptor)

    async def shown(self, request: Request, batch: BatchRow) -> HTTPResponse:
        return json_response(message_batch_object(batch, await self.batches.progress(batch), url_of(request, batch)))

    async def get_message_batch(self, request: Request, batch_id: str) -> HTTPResponse:
        return await self.shown(request, await self.known(request, batch_id))

    async def cancel_message_batch(self, request: Request, batch_id: str) -> HTTPResponse:
        batch = await self.known(request, batch_id)
        return await self.shown(request, batch if batch.is_over else await self.batches.cancel(batch))

    async def delete_message_batch(self, request: Request, batch_id: str) -> HTTPResponse:
        """Forget a batch that is over, with its results."""
        batch = await self.known(request, batch_id)
        if not batch.is_over:
            raise RequestError("the batch is not over: cancel it first, and wait for its end", status=409)
        await self.batches.remove(batch)
        return json_response({"id": batch.id, "type": "message_batch_deleted"})

    async def message_batch_results(self, request: Request, batch_id: str) -> HTTPResponse | None:
        """Send the results that there are by now."""
        batch = await self.known(request, batch_id)
        file = await self.batches.reader.run(partial(self.batches.book.one, FileRow, batch.caller, batch.output))
        assert file is not None, "a batch's file is removed with it"
        return await send_contents(request, self.batches.reader, file, "application/x-jsonl")

    async def list_message_batches(self, request: Request) -> HTTPResponse:
        page = page_wanted(request, MOST_LISTED, LISTED, ("after_id", "before_id"))
        rows, has_more = await self.batches.reader.run(partial(self.listed, request.ctx.ticket.caller, page))
        data = [message_batch_object(row, progress, url_of(request, row)) for row, progress in rows]
        first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        return json_response({"data": data, "has_more": has_more, "first_id": first, "last_id": last})

    def listed(self, caller: str, page: ListPage) -> tuple[Sequence[Any], bool]:
        book = self.batches.book
        rows, has_more = book.listed(BatchRow, caller, {"api": MESSAGES}, True, page)
        return [(row, book.progress(row.id)) for row in rows], has_more

    async def known(self, request: Request, batch_id: str) -> BatchRow:
        return await self.batches.one(MESSAGES, request.ctx.ticket.caller, batch_id)


def url_of(request: Request, batch: BatchRow) -> str:
    """Return the address of a batch's results at this server, by the name by which the client calls it."""
    host = request.headers.getone("x-forwarded-host", None) or request.headers.getone("host", "localhost")
    scheme = request.headers.getone("x-forwarded-proto", "http")
    return f"{scheme}://{host}{ENDPOINT}/batches/{batch.id}/results"
