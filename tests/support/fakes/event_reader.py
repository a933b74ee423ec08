# SPDX-License-Identifier: Apache-2.0
"""The events of one request, read one at a time by a task."""

from collections import deque
from weakref import WeakKeyDictionary

from pontil.runtime.errors import PontilError
from pontil.runtime.proxy.requests.answer import Event, Mailbox
from pontil.runtime.proxy.requests.stream import Stream, Wakeup


class EventReader:
    """The only listener of a mailbox."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox, self.wakeup, self.pending = mailbox, Wakeup(), deque[Event]()
        mailbox.listener = self.wakeup.wake

    def poll(self) -> Event | None:
        """Return the next event; None if there is none yet. Raises the error that ended the request."""
        if not self.pending:
            self.pending.extend(self.mailbox.drain())
        if self.pending:
            return self.pending.popleft()
        if isinstance(self.mailbox.end, PontilError):
            raise self.mailbox.end
        return self.mailbox.end

    async def take(self) -> Event:
        while (said := self.poll()) is None:
            await self.wakeup.wait()
        return said


# A reader holds its mailbox only as long as a test holds the stream.
READERS: WeakKeyDictionary[Mailbox, EventReader] = WeakKeyDictionary()


async def take(stream: Stream) -> Event:
    """Wait for the next event of a stream of one request."""
    mailbox = stream.request.mailbox
    if mailbox not in READERS:
        READERS[mailbox] = EventReader(mailbox)
    return await READERS[mailbox].take()
