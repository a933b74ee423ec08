# SPDX-License-Identifier: Apache-2.0
"""The notes of a proxy in the record of a stream, while its request runs and when it ends."""

import logging
from typing import Any, Protocol

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.proxy.requests.log_fields import about
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.resume.state import state_of, with_end, with_label
from pontil.runtime.proxy.siblings.stream_record import StreamRecord

# A record has a note at most after each such part of its request's age.
MOST_NOTES = 100
LOG = logging.getLogger("pontil.proxy")


class ReplyReader(Protocol):
    """The connection of a stream's reader."""

    def has_begun(self) -> bool:
        """Return whether the head of the answer, with the stream's id, is on its way to it."""

    def cut(self) -> None:
        """End the connection at once, so that its client asks for the rest."""


class NoReader:
    """The reader of a stream that was claimed, before its answer goes on."""

    def has_begun(self) -> bool:
        return False

    def cut(self) -> None:
        """Leave the connection: nothing depends on it yet."""


class JournalOwner(Protocol):
    """The streams of a proxy."""

    def leave(self, journal: "StreamJournal") -> None:
        """Leave the record of a request that has ended."""

    def hand_over(self, journal: "StreamJournal", finish: str) -> bool:
        """Leave a request to who claims its record; return whether that could be."""


class StreamJournal:
    """The record of one request of this proxy. `detached_at` is the time when its client left, None while it is
    there. `written` is the number of ids of each choice that the record has; it is `up_to_date` if the last note could
    be written, and else nobody else may go on from it while this proxy lives. `end` is what was billed, with its label,
    once the answer is complete. It `is_claimed` if its client has asked for the rest, and so knows its id."""

    def __init__(
        self, record: StreamRecord, request: Request, incarnation: str, owner: JournalOwner, reader: ReplyReader
    ) -> None:
        self.record, self.request, self.incarnation, self.owner = record, request, incarnation, owner
        self.reader, self.is_claimed = reader, False
        self.detached_at: float | None = None
        self.written = [0] * len(request.answers)
        self.end: tuple[Usage, str] | None = None
        self.up_to_date = True
        self.seen = -1
        self.noted_at = 0.0

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def has_id(self) -> bool:
        """True if its client knows its id: nobody else can continue it."""
        return self.is_claimed or self.reader.has_begun()

    def claimed(self) -> None:
        """Note that its client is back."""
        self.detached_at, self.is_claimed, self.reader = None, True, NoReader()

    def note(self, left: str | None = None) -> bool:
        """Record the request as it is. What cannot be written is computed again by who goes on after this proxy's
        death. Return whether it could be. One that is `left` to who claims it ends with this label if nobody does."""
        try:
            self.record.append(self.state() if left is None else with_label(self.state(), left))
        except OSError as error:
            if self.up_to_date:
                LOG.warning("the record of a stream cannot be written: %s", error, extra=about(self.request))
            self.up_to_date = False
        else:
            self.up_to_date = True
            self.written = [len(answer.ids) for answer in self.request.answers]
        return self.up_to_date

    def note_changes(self, now: float) -> None:
        """Record the request if it has moved: seldom once it is old, so that its record stays short. Ids that a client
        has and the record has not are computed again."""
        if now - self.noted_at < (now - self.request.times.arrived) / MOST_NOTES:
            return
        self.noted_at = now
        progress = self.request.entry.delivered + sum(self.request.entry.discarded.values())
        if progress != self.seen:
            self.seen = progress
            self.note()

    def state(self) -> dict[str, Any]:
        line = state_of(self.request, self.written, self.incarnation)
        return line if self.end is None else with_end(line, *self.end, self.incarnation)

    def close(self, billed: Usage, finish: str) -> None:
        """Record the end of the request. A complete answer is kept for the window; of any other nothing is."""
        if self.request.complete:
            self.end = billed, finish
            self.note()

    def let_go(self) -> None:
        """Leave the record once it has the end of a complete answer: until then only this proxy knows that, and tells
        it. Another one would bill once more what it computed anew."""
        if self.end is None or self.up_to_date or self.note():
            self.owner.leave(self)

    def await_reader(self, finish: str) -> bool:
        """Leave the request of a client that has a part of its answer to who claims its record. The client has gone, or
        is back and has heard nothing yet: it can be told to come later."""
        is_away = self.detached_at is not None or not self.reader.has_begun()
        return is_away and self.request.mailbox.is_read and self.owner.hand_over(self, finish)
