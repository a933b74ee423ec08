# SPDX-License-Identifier: Apache-2.0
"""The making of batches, and the look-up of a caller's own."""

import re
import secrets
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pontil.http.batch.book_reader import BookReader
from pontil.http.batch.line_request import LineRoutes
from pontil.http.batch.objects import window_text
from pontil.http.batch.runner import BatchRunner
from pontil.http.store.batch_book import (
    ERRORS,
    MADE,
    MESSAGES,
    OPENAI,
    OUTPUT,
    BatchBook,
    BatchProgress,
    BatchRow,
    FileRow,
)
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.ticket import Ticket

PREFIXES = {OPENAI: "batch", MESSAGES: "msgbatch"}
# Bytes of a line per token of its prompt, in an estimate.
BYTES_PER_TOKEN = 4
# Suffix of the folder beside the usage log.
FOLDER = ".batches"


def book_of(config: ProxyConfig) -> BatchBook | None:
    """Return the batch book beside the usage log, where there is one."""
    if config.usage_log is None:
        return None
    return BatchBook(Path(f"{config.usage_log}{FOLDER}"), Path(config.usage_log))


@dataclass(frozen=True, slots=True)
class BatchWish:
    """A batch that is asked for: the lines of a file, at an endpoint, within so many seconds."""

    api: str
    endpoint: str
    input: FileRow
    window: int
    metadata: str


class Batches:
    """The batches of all callers. `runner` runs them."""

    def __init__(self, proxy: Proxy, reader: BookReader, runner: BatchRunner) -> None:
        self.proxy, self.reader, self.runner = proxy, reader, runner

    @property
    def book(self) -> BatchBook:
        return self.reader.book

    @property
    def routes(self) -> LineRoutes:
        return self.runner.site.routes

    async def make(self, ticket: Ticket, wish: BatchWish) -> BatchRow:
        """Make a batch. Raises RequestError where its window could not be kept, by what is known now."""
        await self.check_window(wish)
        batch, files = made(ticket, wish)
        await self.reader.run(partial(self.book.add, *files, batch))
        self.runner.wake()
        return batch

    async def check_window(self, wish: BatchWish) -> None:
        lines = wish.input.lines + await self.reader.run(self.book.pending_lines)
        is_embedding = wish.endpoint == "/v1/embeddings"
        group = self.proxy.config.served_embedding_model_name if is_embedding else None
        admission = self.proxy.admissions.by_group.get(group)
        tokens = wish.input.size * lines // max(1, wish.input.lines) // BYTES_PER_TOKEN
        seconds = None if admission is None else admission.seconds_for(tokens, lines)
        if seconds is not None and seconds > wish.window:
            says = f"{lines} lines take about {seconds / 3600:.1f} h in all seats, and completion_window is"
            says = f"{says} {window_text(wish.window)}: ask for a longer one, or send fewer lines"
            raise RequestError(says, param="completion_window", code="window_too_short")

    async def one(self, api: str, caller: str, name: str) -> BatchRow:
        """Return one of the caller's batches. Raises RequestError (404)."""
        batch = None
        if re.fullmatch(rf"{PREFIXES[api]}_[0-9a-f]{{32}}", name):
            batch = await self.reader.run(partial(self.book.one, BatchRow, caller, name))
        if batch is None:
            raise RequestError(f"there is no batch {name!r:.100}", status=404, param="id", code="not_found")
        return batch

    async def progress(self, batch: BatchRow) -> BatchProgress:
        return await self.reader.run(partial(self.book.progress, batch.id))

    async def cancel(self, batch: BatchRow) -> BatchRow:
        """Have a batch cancelled, unless it is over."""
        batch = await self.reader.run(partial(self.book.cancel, batch, int(time.time())))
        self.runner.wake()
        return batch

    async def remove(self, batch: BatchRow) -> None:
        """Forget a batch that is over, and its files. Its bills stay."""
        await self.reader.run(partial(self.book.remove, FileRow, (batch.input, batch.output)))
        await self.reader.run(partial(self.book.remove, BatchRow, (batch.id,)))
        self.proxy.books.forget_batch(batch.id)


def made(ticket: Ticket, wish: BatchWish) -> tuple[BatchRow, list[FileRow]]:
    """Return a new batch, and the files that tell what becomes of it."""
    token, now = secrets.token_hex(16), int(time.time())
    name = f"{PREFIXES[wish.api]}_{token}"
    kinds = (OUTPUT,) if wish.api == MESSAGES else (OUTPUT, ERRORS)
    files = [
        FileRow(f"file-{secrets.token_hex(16)}", ticket.caller, f"{name}_{kind}.jsonl", MADE, 0, 0, now, name, kind)
        for kind in kinds
    ]
    if wish.api == MESSAGES:
        # They are no files of the Files API.
        files = [replace(file, purpose=MESSAGES) for file in files]
    row = BatchRow(
        name,
        ticket.caller,
        wish.api,
        wish.endpoint,
        wish.input.id,
        files[0].id,
        files[-1].id,
        wish.input.lines,
        wish.window,
        ticket.weight,
        now,
        wish.metadata,
    )
    return row, files
