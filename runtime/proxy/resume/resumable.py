# SPDX-License-Identifier: Apache-2.0
"""Streams that can be continued after their connection broke, at this proxy or another one (docs/decisions/061).

A stream that asked for it is recorded until a while after its end. One whose client has gone runs on for the resume
window, and one whose proxy has gone is an orphan for as long. Whoever claims its record goes on with the request as
after the death of a worker: the ids that were accepted are given, and only the rest is computed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.admission.in_flight import FAILED, LEFT, InFlight
from pontil.runtime.proxy.requests.generation import PromptWork
from pontil.runtime.proxy.requests.log_fields import about
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.resume.retold_text import Retelling, RetoldText
from pontil.runtime.proxy.resume.state import end_of, head_of, held, label_of, owned_by, restored, rewind
from pontil.runtime.proxy.resume.stream_journal import ReplyReader, StreamJournal
from pontil.runtime.proxy.siblings.proxies import Fleet
from pontil.runtime.proxy.siblings.stream_record import NAME, StreamRecord, StreamRecords, Sweep

# Seconds within which another proxy lets a stream go whose client has left, and between two looks.
LET_GO_WITHIN, LOOK = 2.0, 0.05
# Seconds between two signs of life in the records of this proxy's streams.
TOUCH = 1.0
# Seconds between two looks for streams that nobody owns.
SWEEP = 0.5
LOG = logging.getLogger("pontil.proxy")

GONE = "there is no stream of this id to continue: it never was, its time is over, or it is another key's"
HELD = "this stream still has a reader: close that connection first, and try again in a moment"


class ResumableStreams:
    """The streams of this proxy that can be continued, and the door to those of others. Without a folder for their
    records there are none. Raises PontilError where the folder cannot be used."""

    def __init__(self, fleet: Fleet, window: float, in_flight: InFlight) -> None:
        self.fleet, self.records, self.window = fleet, fleet.records, window
        self.in_flight = in_flight
        self.incarnation, self.tokenizer_of = in_flight.incarnation, in_flight.tokenizer_of
        self.books, self.clock = in_flight.books, in_flight.clock
        self.journals: dict[str, StreamJournal] = {}
        self.touched = 0.0
        self.retelling = Retelling(in_flight.tokenizer_of)
        # Records whose requests were looked up in the usage log after their proxies' deaths.
        self.settled: set[str] = set()
        # Streams that may be continued and have no owner, with the sizes of their records: one that is larger had an
        # owner meanwhile.
        self.orphans: dict[str, int] = {}

    def begin(self, stream: Stream, about: Mapping[str, Any], reader: ReplyReader) -> tuple[str, Stream]:
        """Record a stream of one request; return its id, and the stream with a reader that may leave. `about` is what
        the caller needs to render it again. Raises Unavailable if that cannot be.
        The request is cancelled then, whatever fails: nobody is offered its answer."""
        request = stream.request
        with ExitStack() as undo:
            undo.callback(stream.cancel)
            if self.records is None:
                raise Unavailable("streams cannot be continued here: ask for it without pontil-resume")
            record = self.records.begin(head_of(request) | dict(about))
            self.adopt(record, request, reader).note()
            undo.pop_all()
        return record.name, Stream([request], self.detach, self.in_flight.turn)

    def adopt(self, record: StreamRecord, request: Request, reader: ReplyReader) -> StreamJournal:
        journal = StreamJournal(record, request, self.incarnation, self, reader)
        request.journal = self.journals[record.name] = journal
        return journal

    def forget(self, journal: StreamJournal) -> None:
        self.journals.pop(journal.name, None)

    def leave(self, journal: StreamJournal) -> None:
        """Leave the record of a request that has ended: a complete answer is kept for the window, of any other nothing
        is. Until its row is on the disk the record is held, so that an owner that dies leaves no row open. A record
        that has the end need not be held while the disk has no room: whoever finds it sees whose row it is."""
        self.forget(journal)
        if journal.end is None:
            self.books.when_written(journal.record.end)
        else:
            after(journal.request, journal.record.release)

    def detach(self, request: Request) -> None:
        """Let a request whose reader has left run on for a while."""
        journal = request.journal
        if isinstance(journal, StreamJournal) and self.journals.get(journal.name) is journal:
            journal.detached_at = self.clock()

    async def claim(self, name: str, ticket: Ticket) -> StreamRecord | StreamJournal:
        """Claim a stream for a new reader: its record, or its journal where this proxy still has it. Raises
        RequestError: 404 if this caller has no such stream, 409 while it has another reader."""
        records, deadline = self.records, self.clock() + LET_GO_WITHIN
        try:
            if records is None or not NAME.fullmatch(name) or records.about(name).get("caller") != ticket.caller:
                raise KeyError(name)
            while True:
                journal = self.journals.get(name)
                if journal is not None and journal.detached_at is not None:
                    journal.claimed()
                    return journal
                record = None if journal is not None else await taken(records, name)
                if record is not None:
                    return await self.checked(record)
                if self.clock() > deadline:
                    raise RequestError(HELD, status=409, code="stream_has_reader")
                if journal is None:
                    records.ask_for(name)
                await asyncio.sleep(LOOK)
        except KeyError:
            raise RequestError(GONE, status=404, code="stream_not_found") from None

    async def checked(self, record: StreamRecord) -> StreamRecord:
        """Return a record that can be continued. Raises KeyError for one whose time is over."""
        try:
            over = self.records is None or self.records.age(record) > self.window
            if not over and end_of(record.last) is None:
                over = not await asyncio.to_thread(self.books.open_among, [str(record.head["request"])])
            elif not over and record.name not in self.settled:
                with suppress(Unavailable):
                    record.is_unsettled = await asyncio.to_thread(self.is_unsettled, record)
        except BaseException:
            record.release()
            raise
        if over:
            record.release()
            raise KeyError(record.name)
        return record

    def put_back(self, claimed: StreamRecord | StreamJournal) -> None:
        """Leave a stream that was claimed and not taken up."""
        if isinstance(claimed, StreamRecord):
            claimed.release()
        else:
            claimed.detached_at = self.clock()

    async def retold(self, claimed: StreamRecord | StreamJournal) -> list[RetoldText]:
        """Make the text of a claimed stream's answer so far. What cannot be read is left to `take_up`."""
        if isinstance(claimed, StreamRecord):
            return await self.retelling.of_record(claimed.lines)
        request = claimed.request
        ids = [answer.ids for answer in request.answers]
        return await self.retelling.texts(request.params, ids, request.work.group)

    def take_up(
        self,
        claimed: StreamRecord | StreamJournal,
        reader: ReplyReader,
        ticket: Ticket,
        retold: Sequence[RetoldText] = (),
        again: PromptWork | None = None,
    ) -> Stream:
        """Return a stream of the whole answer, from its beginning, for the reader that claimed it by this ticket, whose
        work was read `again`. Raises Unavailable where that cannot be recorded, and for one that was left to other
        proxies meanwhile."""
        if isinstance(claimed, StreamJournal):
            if claimed.request.mailbox.end is None and self.journals.get(claimed.name) is not claimed:
                raise Unavailable("this proxy ends: ask another one for the rest")
            claimed.reader = reader
            rewind(claimed.request, self.tokenizer_of(claimed.request.work.group), retold)
            return self.continued(claimed.request)
        has_ended = end_of(claimed.last) is not None
        self.hold(claimed)
        try:
            books = None if has_ended and not claimed.is_unsettled else self.books.ledger
            about_it = claimed.lines, self.tokenizer_of(claimed.head.get("model")), books, self.clock(), retold, ticket
            request = restored(*about_it, None if has_ended else again)
        except RequestError:
            claimed.end()
            raise
        if has_ended:
            # It is told to one reader at a time.
            release = self.close_row(claimed, request) if claimed.is_unsettled else claimed.release
            return Stream([request], once(release), self.in_flight.turn)
        journal = self.adopt(claimed, request, reader)
        journal.is_claimed, journal.written = True, [len(answer.ids) for answer in request.answers]
        journal.note()
        LOG.info("goes on with a stream of another process", extra=about(request))
        self.in_flight.take_over(request)
        return self.continued(request)

    def hold(self, record: StreamRecord) -> None:
        """Record that a stream is not left to others any more: after this proxy's death it would end with what was
        delivered before. Raises Unavailable, and leaves it, if that cannot be."""
        if label_of(record.last) is None:
            return
        try:
            record.append(held(record.last))
        except OSError:
            record.release()
            raise Unavailable("this stream cannot be recorded now: try again in a moment") from None

    def continued(self, request: Request) -> Stream:
        """Return the stream of an answer of which an earlier reader may have a part."""
        stream = Stream([request], self.detach, self.in_flight.turn)
        stream.expect_whole()
        stream.begin()
        return stream

    # The passing of time.

    def note_changes(self) -> None:
        now = self.clock()
        for journal in list(self.journals.values()):
            journal.note_changes(now)

    def tick(self) -> None:
        """Show that this proxy lives, let go of streams that others ask for, and end those that nobody came back
        for."""
        now = self.clock()
        touch = now - self.touched >= TOUCH
        self.touched = now if touch else self.touched
        for journal in list(self.journals.values()):
            if touch:
                journal.record.touch()
            if journal.end is not None:
                journal.let_go()
                continue
            if journal.detached_at is None:
                continue
            if journal.record.is_wanted:
                self.hand_over(journal, LEFT)
            elif now - journal.detached_at > self.window:
                self.in_flight.cancel(journal.request)

    def hand_over(self, journal: StreamJournal, finish: str) -> bool:
        """Leave a stream to who claims its record, here or at another proxy, with all that was delivered. It stays
        while the record has no room for that, which would be in no books but these: False. If nobody does it ends with
        this label."""
        if not journal.note(left=finish):
            return False
        request = journal.request
        request.journal = None
        self.forget(journal)
        self.in_flight.hand_over(request)
        journal.record.release()
        self.books.when_written(partial(self.lose_if_gone, journal.name, request.id))
        return True

    def lose_if_gone(self, name: str, request_id: str) -> None:
        """Close the row of a stream that was left, if its record has ended before the open row was on the disk."""
        if self.records is not None and not self.records.path_of(name).exists():
            self.books.lose_request(request_id)

    def hand_over_all(self) -> None:
        """Leave all streams to other proxies, since this one ends, but for those that their readers could not ask for.
        One that cannot be recorded is left by the end of this process, after its row: it is for nobody to continue."""
        for journal in list(self.journals.values()):
            if journal.end is None and journal.has_id and self.hand_over(journal, LEFT):
                journal.reader.cut()

    async def watch(self) -> None:
        """Look after the streams that nobody owns for as long as this proxy serves."""
        while self.records is not None:
            self.settle(await asyncio.to_thread(self.sweep, self.records))
            await asyncio.sleep(SWEEP)

    def sweep(self, records: StreamRecords) -> Sweep:
        """Return what is to be done about the streams that nobody owns. Reads files: call it in a thread."""
        sweep, unowned_records = Sweep(), records.unowned(self.settled, self.window, self.orphans)
        ended_records = [record for record in unowned_records if end_of(record.last) is not None]
        left_records = [record for record in unowned_records if label_of(record.last) is not None]
        # In this order: a row that is open after its proxy's death stays open.
        owed_names = {record.name for record in ended_records if self.has_live_owner(record)}
        try:
            unwritten = self.unwritten([*ended_records, *left_records])
        except Unavailable:
            # They are looked at again.
            unwritten = owed_names = {record.name for record in [*ended_records, *left_records]}
        for record in unowned_records:
            self.sort(record, sweep, records.age(record) > self.window, owed_names, unwritten)
        for name in self.orphans:
            with suppress(KeyError):
                sweep.add_orphan(records.about(name))
        return sweep

    def sort(self, record: StreamRecord, found: Sweep, over: bool, owed: set[str], unwritten: set[str]) -> None:
        """Add a stream that nobody owns to what was found. Of `unwritten` streams, which ended or were left, the last
        word is not on the disk; that of `owed` ones is their proxies' to write, which live."""
        name, has_ended = record.name, end_of(record.last) is not None
        if name in unwritten and name in owed:
            # The disk may be full.
            record.release()
        elif has_ended and name in unwritten and name not in self.settled:
            found.unsettled.append(record)
        elif over and name in unwritten and not has_ended:
            found.left.append(record)
        elif over and not has_ended:
            found.lost.append(record)
        elif over:
            record.end()
        else:
            if has_ended:
                found.settled.add(name)
            else:
                self.orphans[name] = record.size
            record.release()

    def is_unsettled(self, record: StreamRecord) -> bool:
        """Return whether nobody is left to write the row of a stream that ended."""
        # In this order: a row that is open after its proxy's death stays open.
        return not self.has_live_owner(record) and bool(self.unwritten([record]))

    def has_live_owner(self, record: StreamRecord) -> bool:
        """Return whether the proxy lives that writes the row of a stream that ended."""
        end = end_of(record.last)
        assert end is not None, "only those that ended are asked about"
        return end.owner == self.incarnation or self.fleet.lives(end.owner)

    def unwritten(self, ended: Sequence[StreamRecord]) -> set[str]:
        """Return the names of the streams whose last word is not on the disk. Raises Unavailable."""
        names = {str(record.head["request"]): record.name for record in ended if self.books.log is not None}
        return {names[request] for request in self.books.open_among(names)}

    def settle(self, found: Sweep) -> None:
        """Close the rows of streams whose proxies cannot, and let the records go once that is on the disk."""
        self.settled |= found.settled
        self.in_flight.admissions.limits.orphans = found.orphans
        for record in [*found.lost, *found.left]:
            # Nobody else counts it: its proxy is gone, or left it to a client that did not come back.
            self.in_flight.metrics.ended[label_of(record.last) or FAILED].inc()
            if record not in found.left or not self.close_left(record):
                self.books.lose_request(str(record.head["request"]))
            self.books.when_written(record.end)
        for record in found.unsettled:
            try:
                request = restored(record.lines, None, self.books.ledger, self.clock())
            except RequestError:
                record.end()
                self.settled.add(record.name)
            else:
                self.close_row(record, request)()

    def close_left(self, record: StreamRecord) -> bool:
        """Close the row of a stream that its proxy let go of, with all that was delivered, and that nobody went on
        with. Return whether its record can be read."""
        try:
            request = restored(record.lines, None, self.books.ledger, self.clock())
        except RequestError:
            return False
        self.books.take_over(request)
        self.books.close(request, request.usage, label_of(record.last) or FAILED)
        return True

    def close_row(self, record: StreamRecord, request: Request) -> Callable[[], None]:
        """Close the row of a stream that ended whose proxy is gone. Return what releases the record: when this proxy's
        part in it is on one of the disks, so that another one that looks finds an owner that lives, or the row."""
        end = end_of(record.last)
        assert end is not None, "only of those that ended"
        self.settled.add(record.name)
        try:
            record.append(owned_by(record.last, self.incarnation))
        except OSError:
            release = partial(self.books.when_written, record.release)
        else:
            release = partial(after, request, record.release)
        self.books.close(request, end.usage, end.finish)
        return release


async def taken(records: StreamRecords, name: str) -> StreamRecord | None:
    """Claim a stream as `StreamRecords.claim` does, in a thread: it is read whole."""
    claiming = asyncio.ensure_future(asyncio.to_thread(records.claim, name))
    try:
        return await asyncio.shield(claiming)
    except asyncio.CancelledError:
        claiming.add_done_callback(leave_unread)
        raise


def leave_unread(claiming: "asyncio.Future[StreamRecord | None]") -> None:
    """Leave a record whose reader has gone while it was claimed."""
    if not claiming.cancelled() and claiming.exception() is None and (record := claiming.result()) is not None:
        record.release()


def once(work: Callable[[], None]) -> Callable[[Request], None]:
    """Return what does this with the first request, and nothing with others."""
    pending = [work]

    def cancel(request: Request) -> None:
        if pending:
            pending.pop()()

    return cancel


def after(request: Request, work: Callable[[], None]) -> None:
    """Do this once a request's row is on the disk; at once if that is not to be waited for."""
    if request.receipt is None:
        work()
    else:
        request.receipt.add_done_callback(lambda _: work())
