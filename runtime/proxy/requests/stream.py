# SPDX-License-Identifier: Apache-2.0
"""Streams of a reply's events to its reader, over the mailboxes of its requests."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import PontilError
from pontil.runtime.proxy.requests.answer import ChoiceEvent, Finished, Mailbox, WholeAnswer, no_listener
from pontil.runtime.proxy.requests.request import Request


class Wakeup:
    """An event without memory: a wake-up while no task waits is lost. Check the condition first, then wait, with no
    await between. `is_awaited` is read for every token, and therefore a plain attribute."""

    def __init__(self) -> None:
        self.waiter: asyncio.Future[None] | None = None
        self.is_awaited = False

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self, patience: float | None = None) -> None:
        """Wait for a wake-up, at most `patience` seconds. A timer costs less than asyncio.wait_for, which starts a
        task."""
        loop = asyncio.get_running_loop()
        self.waiter = loop.create_future()
        self.is_awaited = True
        timer = None if patience is None else loop.call_later(patience, self.wake)
        try:
            await self.waiter
        finally:
            self.waiter, self.is_awaited = None, False
            if timer is not None:
                timer.cancel()


# Seconds that the end of an answer waits for the usage log on a slow disk.
LOG_PATIENCE = 1.0


class MessageTurn:
    """The event-loop callback in which a batch of messages is handled. What is deferred in it is called at its end.

    So the bytes of all streams are made first and written afterwards: each system call displaces the interpreter from
    the processor's caches, and doing the two in turns costs a token several microseconds more.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.deferred: list[Callable[[], None]] = []

    def defer(self, work: Callable[[], None]) -> None:
        """Call `work` at the end of the turn; at once outside of one."""
        if self.is_open:
            self.deferred.append(work)
        else:
            work()

    def close(self) -> list[Callable[[], None]]:
        """End the turn; return what was deferred, for the caller to call in order."""
        self.is_open = False
        callbacks, self.deferred = self.deferred, []
        return callbacks


class Stream:
    """The merged events of one reply's requests: usually a single one, or one per prompt of a completion.

    Always read it to its end or `cancel` it: cancelling a finished request does nothing. `error` is the error that
    ended one of the requests, and with it the reply. What writes the events in the `turn` that brings them defers the
    write to its end.
    """

    def __init__(
        self, requests: Sequence[Request], cancel: Callable[[Request], None], turn: MessageTurn | None = None
    ) -> None:
        self.requests, self.cancel_request = tuple(requests), cancel
        self.turn = turn or MessageTurn()
        self.open: list[tuple[int, Mailbox]] = []
        first = 0
        for request in self.requests:
            self.open.append((first, request.mailbox))
            first += request.params.n
        self.error: PontilError | None = None

    @property
    def billed(self) -> tuple[Request, ...]:
        """The requests whose usage is the reply's."""
        return self.requests

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, which must not raise, whenever there are events to `drain`."""
        for request in self.requests:
            request.mailbox.listener = listener

    def note_reader(self, *, takes: bool) -> None:
        """Note whether the reader takes anything."""
        for request in self.requests:
            request.mailbox.untaken = not takes

    def drain(self) -> list[ChoiceEvent]:
        """Remove and return the events since the last call. The `end` comes after them."""
        events: list[ChoiceEvent] = []
        for source in self.open.copy():
            first, mailbox = source
            events += [(first + event.choice, event) for event in mailbox.drain()]
            end = mailbox.end
            if isinstance(end, Finished):
                self.open.remove(source)
            elif end is not None:
                self.error = end
                break
        return events

    @property
    def is_over(self) -> bool:
        """True if all events have been drained, or a request failed."""
        return not self.open or self.error is not None

    @property
    def has_more(self) -> bool:
        """True if what was drained was not all that there is."""
        return False

    def expect_whole(self, answer: WholeAnswer | None = None) -> None:
        """Make the requests that run parts of this answer, or of one of their own, unless they are parts of one."""
        running = [request for request in self.billed if request.mailbox.end is None]
        whole = answer or WholeAnswer(len(running))
        for request in running:
            if request.mailbox.whole is None:
                request.mailbox.whole = whole

    def begin(self) -> None:
        """Note that the reader has a part of the answer."""
        for request in self.billed:
            if request.mailbox.whole is not None:
                request.mailbox.whole.begin()

    async def all(self) -> list[ChoiceEvent]:
        """Wait for the end of all requests and return their events, with a single wake-up. Raises the error of a
        request that failed."""
        wakeup = Wakeup()
        self.expect_whole()
        for request in self.requests:
            request.mailbox.listener = partial(wake_at_end, request.mailbox, wakeup)
        while self.end is None:
            await wakeup.wait()
        events = self.drain()
        if self.error is not None:
            raise self.error
        return events

    @property
    def is_settled(self) -> bool:
        """True if the usage log has every request, which must have ended, or there is none."""
        return all(request.receipt is None or request.receipt.done() for request in self.billed)

    async def settled(self) -> None:
        """Wait until the usage log has every request, which must have ended, for at most LOG_PATIENCE each."""
        for request in self.billed:
            if request.receipt is not None and not request.receipt.done():
                await asyncio.wait([asyncio.wrap_future(request.receipt)], timeout=LOG_PATIENCE)

    def cancel(self) -> None:
        for request in self.requests:
            self.cancel_request(request)
            # The listener refers to this stream and so to the request: without it no garbage collector is needed to
            # free a prompt and its answer.
            request.mailbox.listener = no_listener

    @property
    def request(self) -> Request:
        """The only request."""
        (request,) = self.requests
        return request

    @property
    def by_choice(self) -> list[Request]:
        return [request for request in self.requests for _ in range(request.params.n)]

    @property
    def end(self) -> Finished | PontilError | None:
        """The error that ended one of the requests, or the last one's end once all have ended; else None."""
        ends = [request.mailbox.end for request in self.requests]
        error = next((end for end in ends if isinstance(end, PontilError)), None)
        return error or (None if None in ends else ends[-1])

    @property
    def route(self) -> str:
        """Names of the requests' routes, like prefill:0>decode:0, each once."""
        return ",".join(dict.fromkeys(request.attempts.route_name for request in self.billed))

    @property
    def usage(self) -> Usage:
        """Usage of what has been delivered so far."""
        return sum((request.usage for request in self.billed), Usage(0, 0, 0))

    @property
    def final_usage(self) -> Usage:
        """Usage of the requests that have finished."""
        ends = (request.mailbox.end for request in self.billed)
        return sum((end.usage for end in ends if isinstance(end, Finished)), Usage(0, 0, 0))


def joined(streams: Sequence[Stream]) -> Stream:
    """Return one stream for the requests of several, of which none was read."""
    requests = [request for stream in streams for request in stream.requests]
    return Stream(requests, streams[0].cancel_request, streams[0].turn)


class HasEnd(Protocol):
    """A mailbox."""

    @property
    def end(self) -> Finished | PontilError | None: ...


def wake_at_end(mailbox: HasEnd, wakeup: Wakeup) -> None:
    if mailbox.end is not None:
        wakeup.wake()
