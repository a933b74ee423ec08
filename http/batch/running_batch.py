# SPDX-License-Identifier: Apache-2.0
"""One batch that runs: its lines from the input file to their outcomes."""

import asyncio
import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from pontil.http.batch.book_reader import BookReader
from pontil.http.batch.input_lines import InputLine, LineReader
from pontil.http.batch.line_request import LineRoutes
from pontil.http.batch.line_room import LineRoom
from pontil.http.batch.outcome_lines import answered, left_out, refused
from pontil.http.batch.outcome_writer import OutcomeWriter
from pontil.http.intake.caller_turns import CALLER
from pontil.http.store.batch_book import (
    CANCELLED,
    COMPLETED,
    ERRORS,
    EXPIRED,
    FAILED,
    MESSAGES,
    OUTPUT,
    REVOKED,
    BatchRow,
)
from pontil.http.store.outcome_files import OutcomeFiles
from pontil.runtime.foundation.fair_share import ServiceClass
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.answer import WholeAnswer
from pontil.runtime.proxy.requests.ticket import Allowance, Ticket
from pontil.runtime.threads import to_its_end

LOG = logging.getLogger("pontil.batches")
# Lines that are read at a time.
PORTION = 16
# Tries of a line that fails while there are workers, each of which has attempts of its own; the pauses between them.
MOST_TRIES = 5
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
# Seconds between two looks at whether what runs is still wanted.
LOOK = 1.0
# The state of a batch that has a line of such an outcome; the first of them counts.
ENDS = {CANCELLED: CANCELLED, REVOKED: FAILED, EXPIRED: EXPIRED}


@dataclass(frozen=True, slots=True)
class BatchSite:
    """The things that all batches of a proxy share."""

    proxy: Proxy
    reader: BookReader
    routes: LineRoutes
    room: LineRoom


class RunningBatch:
    """A batch that this proxy runs. Conservation: each of its lines is unread, in flight in `lines`, with the writer,
    or its outcome is in the usage log, as that of those `done` was at the beginning."""

    def __init__(self, row: BatchRow, site: BatchSite) -> None:
        self.row, self.site = row, site
        self.done: set[int] = set()
        self.lines: set[asyncio.Task[None]] = set()
        self.task: asyncio.Task[None] | None = None
        self.is_stopping = False
        # The reason why a line has ended without an outcome.
        self.fault: BaseException | None = None
        # Closes the files. Used as they are, by the reader's jobs alone.
        self.opened = ExitStack()

    def open(self, most_line: int) -> tuple[LineReader, OutcomeFiles]:
        """Open the files, of whose ends that is cut off which the usage log does not name. Blocks."""
        book, row = self.site.reader.book, self.row
        of_messages = row.api == MESSAGES
        kinds = {OUTPUT: row.output} if of_messages else {OUTPUT: row.output, ERRORS: row.errors}
        self.done = book.done_lines(row.id)
        files = OutcomeFiles(book, kinds, book.progress(row.id).places)
        self.opened.callback(files.close)
        lines = LineReader(book.path_of(row.input), row.endpoint, most_line, of_messages=of_messages)
        self.opened.callback(lines.close)
        return lines, files

    def hear(self, row: BatchRow) -> None:
        """Take what was asked of the batch meanwhile."""
        self.row = row

    @property
    def verdict(self) -> str | None:
        """The outcome of lines that nobody waits for any more; None while they are wanted. Those that wait for a seat
        run as others do, so that all of them end when their caller has no key any more."""
        if self.row.cancelled is not None:
            return CANCELLED
        if not self.site.routes.knows(self.row.caller):
            return REVOKED
        return EXPIRED if time.time() >= self.row.expires else None

    async def run(self, most_line: int) -> None:
        """Have all lines answered, and end the batch."""
        reader = self.site.reader
        works: list[asyncio.Task[None]] = []
        with ExitStack() as accounts:
            try:
                lines, files = await reader.run(partial(self.open, most_line))
                done, all_lines = len(self.done), self.row.lines
                LOG.info("the batch %s begins: %d of its %d lines have an outcome", self.row.id, done, all_lines)
                writer = OutcomeWriter(self.row.id, files, self.site.proxy.books, reader)
                accounts.callback(writer.stop)
                works += map(asyncio.ensure_future, (self.answer_all(lines, writer), writer.run()))
                # The writer ends by a fault alone, after which nothing that waits for it would.
                ended, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
                for work in ended:
                    work.result()
                await self.end()
            finally:
                self.is_stopping = True
                await to_its_end(self.leave(works))

    async def answer_all(self, lines: LineReader, writer: OutcomeWriter) -> None:
        """Have the lines answered until the outcome of each is on the disk. Raises the first fault of one."""
        await self.begin_lines(lines, writer)
        while self.lines:
            await asyncio.wait(self.lines, timeout=LOOK)
            for task in self.lines if self.verdict is not None else ():
                task.cancel()
        if self.fault is not None:
            raise self.fault
        await writer.written()

    async def leave(self, works: "list[asyncio.Task[None]]") -> None:
        """Stop what runs, then close the files: behind the job that uses them, if there is one."""
        await stopped(works)
        await stopped([*self.lines])
        await self.site.reader.run(self.opened.close, 0)

    async def end(self) -> None:
        """Note the end of a batch all of whose lines have an outcome."""
        book = self.site.reader.book
        counts = (await self.site.reader.run(partial(book.progress, self.row.id))).counts
        state = next((state for outcome, state in ENDS.items() if counts.get(outcome)), COMPLETED)
        if self.row.cancelled is not None:
            state = CANCELLED
        await self.site.reader.run(partial(book.end, self.row, state, int(time.time())))
        LOG.info("the batch %s is %s", self.row.id, state)

    async def begin_lines(self, lines: LineReader, writer: OutcomeWriter) -> None:
        while portion := await self.site.reader.run(partial(lines.next_lines, PORTION, self.done)):
            for line in portion:
                if line.error is not None:
                    writer.tell(refused(self.row, line))
                elif (verdict := await self.turn()) is not None:
                    writer.tell(left_out(self.row, line, verdict))
                else:
                    task = asyncio.ensure_future(self.answer(line, writer))
                    self.lines.add(task)
                    task.add_done_callback(self.line_ended)
            while len(writer.waiting) > PORTION:
                await writer.emptied.wait()

    def line_ended(self, task: "asyncio.Task[None]") -> None:
        """Give back the place of a line, which may have been cancelled before it began."""
        self.lines.discard(task)
        self.site.room.give_back()
        if task.cancelled():
            self.fault = self.fault or RuntimeError("a line of a batch has ended without an outcome")
        else:
            self.fault = self.fault or task.exception()

    async def turn(self) -> str | None:
        """Wait for a place for one more line; return the verdict where it is not to be asked any more."""
        while (verdict := self.verdict) is None:
            if await self.site.room.take(LOOK):
                return None
        return verdict

    async def answer(self, line: InputLine, writer: OutcomeWriter) -> None:
        """Have a line answered, in one try after the other."""
        CALLER.set(self.row.caller)
        whole, tries, pause = WholeAnswer(1), 0, FIRST_PAUSE
        try:
            while True:
                answer = await self.site.routes.answer(self.row.endpoint, line.body, self.ticket(line, whole))
                tries += self.is_served
                if self.is_stopping:
                    # A handler may have lost the cancellation.
                    raise asyncio.CancelledError
                if not answer.may_come_later or tries >= MOST_TRIES:
                    break
                whole.fail()
                await asyncio.sleep(pause)
                whole, pause = WholeAnswer(1), min(LONGEST_PAUSE, 2 * pause)
            name = f"{self.row.id}-{line.number}"
            writer.tell(answered(self.row, line, answer.status, name, answer.body), whole)
        except BaseException as error:
            whole.fail()
            verdict = self.verdict
            if self.is_stopping or verdict is None or not isinstance(error, asyncio.CancelledError):
                raise
            writer.tell(left_out(self.row, line, verdict))

    def ticket(self, line: InputLine, whole: WholeAnswer) -> Ticket:
        """Return the ticket of a line, whose name is a part of the ids of its requests: so its bills name it."""
        allowance = Allowance(self.row.weight, ServiceClass.BATCH)
        name = f"{self.row.id}-{line.number}"
        return Ticket(name, self.row.caller, allowance, ServiceClass.BATCH.place(), whole=whole)

    @property
    def is_served(self) -> bool:
        """True if a failure may be the line's own fault: there are workers, and the proxy does not end."""
        proxy = self.site.proxy
        return any(group.available for group in proxy.registry.answering) and not proxy.readiness.is_draining


async def stopped(tasks: "list[asyncio.Task[None]]") -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
