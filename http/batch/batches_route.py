# SPDX-License-Identifier: Apache-2.0
"""The endpoints of OpenAI's Batch API."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import json as json_response

from pontil.http.batch.files_route import MOST_LINES, FilesRoutes, listed_object, page_wanted
from pontil.http.batch.making import Batches, BatchWish
from pontil.http.batch.objects import batch_object, window_seconds
from pontil.http.intake.body import BodyReader, understood
from pontil.http.schema.parameter import Parameter, ParameterTable
from pontil.http.schema.parameter_types import InertType, ObjectType, TextType, WordType
from pontil.http.schema.reader import Fields, IgnoredFields
from pontil.http.store.batch_book import OPENAI, UPLOADED, BatchRow, ListPage
from pontil.runtime.errors import RequestError

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MOST_LISTED, LISTED = 100, 20
MOST_DAYS, DAY = 30, 86400
# As OpenAI bounds metadata.
MOST_PAIRS, MOST_KEY, MOST_VALUE = 16, 64, 512
BATCH = (
    Parameter("input_file_id", TextType(), "the file with a request in each line", required=True),
    Parameter("endpoint", WordType(ENDPOINTS), "where all of its requests go", required=True),
    Parameter("completion_window", TextType(), "the time until the last answer, like 24h", required=True),
    Parameter("metadata", ObjectType(), "at most 16 texts by their names, which are shown with the batch"),
    Parameter("output_expires_after", InertType(ObjectType(), None), "when files are removed, which is not done"),
)
TABLE = ParameterTable(BATCH)


def read_batch(data: Mapping[str, Any], ignored: IgnoredFields | None = None) -> tuple[str, str, int, str]:
    """Return the file's id, the endpoint, the window in seconds and the metadata. Raises RequestError."""
    fields = Fields(data, ignored=ignored)
    values = TABLE.read(fields)
    window = window_seconds(values["completion_window"])
    if window is None or window > MOST_DAYS * DAY:
        raise fields.unfit("completion_window", values["completion_window"], "a time like 24h, 90m or 2d, at most 30d")
    metadata = values["metadata"]
    for name, value in (metadata or {}).items():
        if len(name) > MOST_KEY or not isinstance(value, str) or len(value) > MOST_VALUE or len(metadata) > MOST_PAIRS:
            says = f"may hold {MOST_PAIRS} texts of at most {MOST_VALUE} characters, with names of {MOST_KEY}"
            raise fields.wrong("metadata", says)
    return values["input_file_id"], values["endpoint"], window, json.dumps(metadata)


class BatchesRoutes:
    """Handlers over the batches, of which each caller sees its own."""

    def __init__(self, batches: Batches, files: FilesRoutes, bodies: BodyReader) -> None:
        self.batches, self.files, self.bodies = batches, files, bodies

    async def create_batch(self, request: Request) -> HTTPResponse:
        parser = partial(read_batch, ignored=self.bodies.ignored(request))
        name, endpoint, window, metadata = await self.bodies.read(request, parser)
        understood(request)
        if endpoint not in self.batches.routes.handlers:
            says = f"{endpoint} is not served here: start the server with --embed, which starts workers for it"
            raise RequestError(says, param="endpoint", code="not_supported")
        file = await self.files.known(request, name)
        if file.purpose != UPLOADED:
            raise RequestError(f"the file {name} was not uploaded with the purpose batch", param="input_file_id")
        if not 0 < file.lines <= MOST_LINES:
            says = f"the file has {file.lines} lines, and a batch 1 to {MOST_LINES}: send several batches"
            raise RequestError(says, param="input_file_id")
        wish = BatchWish(OPENAI, endpoint, file, window, metadata)
        return await self.shown(await self.batches.make(request.ctx.ticket, wish))

    async def shown(self, batch: BatchRow) -> HTTPResponse:
        return json_response(batch_object(batch, await self.batches.progress(batch)))

    async def get_batch(self, request: Request, batch_id: str) -> HTTPResponse:
        return await self.shown(await self.batches.one(OPENAI, request.ctx.ticket.caller, batch_id))

    async def cancel_batch(self, request: Request, batch_id: str) -> HTTPResponse:
        batch = await self.batches.one(OPENAI, request.ctx.ticket.caller, batch_id)
        if batch.is_over:
            raise RequestError(f"the batch is {batch.state} already: it cannot be cancelled", status=409)
        return await self.shown(await self.batches.cancel(batch))

    async def list_batches(self, request: Request) -> HTTPResponse:
        page = page_wanted(request, MOST_LISTED, LISTED)
        return json_response(await self.batches.reader.run(partial(self.listed, request.ctx.ticket.caller, page)))

    def listed(self, caller: str, page: ListPage) -> dict[str, Any]:
        book = self.batches.book
        rows, has_more = book.listed(BatchRow, caller, {"api": OPENAI}, True, page)
        return listed_object([batch_object(row, book.progress(row.id)) for row in rows], has_more)
