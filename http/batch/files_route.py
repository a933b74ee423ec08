# SPDX-License-Identifier: Apache-2.0
"""The endpoints of OpenAI's Files API, for the files of batches."""

import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import json as json_response

from pontil.http.batch.book_reader import BookReader, check_room
from pontil.http.batch.input_lines import count_lines
from pontil.http.batch.objects import file_object
from pontil.http.intake.body import check_form_type, understood
from pontil.http.intake.streamed_form import StreamedForm
from pontil.http.schema.parameter import Parameter, Schema
from pontil.http.schema.parameter_types import ShapedType, WordType
from pontil.http.schema.reader import Fields
from pontil.http.store.batch_book import UPLOADED, FileRow, ListPage
from pontil.runtime.errors import RequestError
from pontil.runtime.threads import to_its_end

FILE_ID = re.compile(r"file-[0-9a-f]{32}")
# As OpenAI: bytes and lines of a file.
MOST_FILE, MOST_LINES = 200 << 20, 50_000
MOST_LISTED, LISTED = 10_000, 10_000
MOST_NAME = 256
# Bytes that are written or read in a thread at a time.
PIECE = 1 << 20


def no_file(fields: Fields, name: str) -> bytes:
    """Stands for the reader of the file, which is written as it comes."""
    raise fields.wrong(name, "must be a file: give its part a filename")


FILE_SCHEMA: Schema = {"title": "a file of lines of JSON", "type": "string", "contentMediaType": "application/jsonl"}
FILE_FORM = (
    Parameter("file", ShapedType(no_file, FILE_SCHEMA), "the file", required=True),
    Parameter("purpose", WordType((UPLOADED,)), "what the file is for", required=True),
)


class FilesRoutes:
    """Handlers over the files that are kept, of which each caller sees its own. `most_line` are the bytes that a line
    may have."""

    def __init__(self, reader: BookReader, most_line: Callable[[], int]) -> None:
        self.reader, self.most_line = reader, most_line

    async def create_file(self, request: Request) -> HTTPResponse:
        boundary = check_form_type(request)
        length = request.headers.getone("content-length", "")
        if length.isdecimal() and int(length) > MOST_FILE:
            raise too_large()
        book, name = self.reader.book, f"file-{secrets.token_hex(16)}"
        # Closed behind the job that uses the file, if its client left in the middle.
        opened = ExitStack()
        try:
            descriptor = await self.reader.run(partial(self.open, name, opened))
            size, form = await self.receive(request, boundary, descriptor)
            row = await self.reader.run(partial(self.keep, request.ctx.ticket.caller, name, form, size))
        except BaseException:
            await to_its_end(self.reader.run(partial(book.remove, FileRow, (name,)), 0))
            raise
        finally:
            await to_its_end(self.reader.run(opened.close, 0))
        understood(request)
        return json_response(file_object(row, row.size))

    def open(self, name: str, opened: ExitStack) -> int:
        descriptor = self.reader.book.create(name)
        opened.callback(os.close, descriptor)
        return descriptor

    async def receive(self, request: Request, boundary: bytes, descriptor: int) -> tuple[int, StreamedForm]:
        """Write the file of a form as it comes; return its size, and the form."""
        stream: Any = request.stream
        # Sanic's own limit is that of other bodies.
        stream.request_max_size = MOST_FILE + PIECE
        sizes: list[int] = []
        form = StreamedForm(boundary, partial(write, descriptor, sizes))
        piece = bytearray()
        async for data in stream:
            piece += data
            if len(piece) >= PIECE:
                await self.reader.run(partial(form.feed, bytes(piece)), len(piece))
                piece.clear()
        await self.reader.run(partial(form.feed, bytes(piece)), len(piece))
        form.end()
        await self.reader.run(partial(os.fsync, descriptor))
        return sum(sizes), form

    def keep(self, caller: str, name: str, form: StreamedForm, size: int) -> FileRow:
        """Keep a file whose contents are there. Raises RequestError. Blocks."""
        purpose = form.fields.get("purpose", b"").decode("utf-8", "replace")
        if form.file_name is None:
            raise RequestError("file is missing: send the lines of a batch in a part with a filename", param="file")
        if purpose != UPLOADED:
            says = f"purpose is {purpose!r:.80}" if purpose else "purpose is missing"
            raise RequestError(f"{says}, and files are kept for batches only: send {UPLOADED}", param="purpose")
        book = self.reader.book
        check_room(book, caller, size)
        lines = count_lines(book.path_of(name), self.most_line())
        shown_name = form.file_name[:MOST_NAME] or "file.jsonl"
        row = FileRow(name, caller, shown_name, UPLOADED, size, lines, int(time.time()))
        book.add(row)
        return row

    async def get_file(self, request: Request, file_id: str) -> HTTPResponse:
        file = await self.known(request, file_id)
        return json_response(file_object(file, await self.reader.run(partial(self.reader.book.size_of, file))))

    async def list_files(self, request: Request) -> HTTPResponse:
        page, newest_first = page_wanted(request, MOST_LISTED, LISTED), order_wanted(request)
        purpose = request.args.get("purpose")
        where = {} if purpose is None else {"purpose": purpose}
        work = partial(self.listed, request.ctx.ticket.caller, where, newest_first, page)
        return json_response(await self.reader.run(work))

    def listed(self, caller: str, where: dict[str, str], newest_first: bool, page: ListPage) -> dict[str, Any]:
        book = self.reader.book
        files, has_more = book.listed(FileRow, caller, where, newest_first, page)
        return listed_object([file_object(file, book.size_of(file)) for file in files], has_more)

    async def delete_file(self, request: Request, file_id: str) -> HTTPResponse:
        file, book = await self.known(request, file_id), self.reader.book
        users = await self.reader.run(partial(book.users_of, file))
        if users:
            says = f"the batch {users[0].id} needs this file: cancel it, or wait for its end"
            raise RequestError(says, status=409, code="file_in_use")
        await self.reader.run(partial(book.remove, FileRow, (file.id,)))
        return json_response({"id": file.id, "object": "file", "deleted": True})

    async def file_content(self, request: Request, file_id: str) -> HTTPResponse | None:
        """Send what a file has by now."""
        file = await self.known(request, file_id)
        return await send_contents(request, self.reader, file, "application/octet-stream")

    async def known(self, request: Request, file_id: str) -> FileRow:
        """Return one of the caller's files. Raises RequestError (404)."""
        caller, file = request.ctx.ticket.caller, None
        if FILE_ID.fullmatch(file_id):
            file = await self.reader.run(partial(self.reader.book.one, FileRow, caller, file_id))
        if file is None:
            raise RequestError(f"No such File object: {file_id!r:.100}", status=404, param="id")
        return file


def write(descriptor: int, sizes: list[int], data: bytes) -> None:
    """Write all of the data behind what is there. Raises RequestError (413) for too much, OSError."""
    sizes.append(len(data))
    if sum(sizes) > MOST_FILE:
        raise too_large()
    written = 0
    while written < len(data):
        written += os.write(descriptor, data[written:])


def too_large() -> RequestError:
    says = f"the file is larger than {MOST_FILE} bytes, which is all that is taken: send several batches"
    return RequestError(says, status=413, param="file")


async def send_contents(request: Request, reader: BookReader, file: FileRow, content_type: str) -> HTTPResponse | None:
    """Send what counts of a file, in pieces."""
    size = await reader.run(partial(reader.book.size_of, file))
    if size <= PIECE:
        return HTTPResponse(await reader.run(partial(reader.book.read, file, 0, size)), content_type=content_type)
    response = await request.respond(content_type=content_type, headers={"content-length": str(size)})
    assert response is not None
    for begin in range(0, size, PIECE):
        piece = await reader.run(partial(reader.book.read, file, begin, min(PIECE, size - begin)))
        await response.send(piece)
    await response.eof()
    return None


def page_wanted(request: Request, most: int, usual: int, names: tuple[str, str] = ("after", "before")) -> ListPage:
    """Return the page of a list that the query asks for. Raises RequestError."""
    limit = request.args.get("limit", str(usual))
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 8 and 1 <= int(limit) <= most):
        raise RequestError(f"limit must be between 1 and {most}", param="limit")
    after, before = (request.args.get(name) for name in names)
    if after is not None and before is not None:
        raise RequestError(f"{names[0]} and {names[1]} are both there: send one of them", param=names[1])
    return ListPage(int(limit), after, before, names)


def order_wanted(request: Request) -> bool:
    """Return whether the newest come first."""
    order = request.args.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError("order must be asc or desc", param="order")
    return bool(order == "desc")


def listed_object(data: list[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}
