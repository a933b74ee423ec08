# SPDX-License-Identifier: Apache-2.0
"""The adapters of a worker in memory, which all of its ranks read beside their steps.

A request waits here for its adapter before it goes to the engine or to a transfer. All that is in memory stays within
a limit: adapters that were used longest ago leave it, and are read again when one is asked for.
"""

import logging
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

from pontil.runtime.engine.sequences.known_adapters import KnownAdapters
from pontil.runtime.errors import ModelError
from pontil.runtime.worker.adapters.adapter_parts import AdapterParts
from pontil.runtime.worker.adapters.adapter_reader import AdapterRead
from pontil.runtime.worker.process.worker_request import WorkerRequest

logger = logging.getLogger("pontil.worker")


@dataclass(slots=True)
class AdapterChecks:
    """The digests of adapters that were read whole here, and why others could not be, until somebody has taken note."""

    loaded: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)

    def forget(self, digest: str) -> None:
        self.loaded.discard(digest)
        self.failed.pop(digest, None)


class AdapterLoads:
    """Adapters in memory, and the requests that wait for theirs, in order. `submit` a request; `poll` returns those
    that may start. Requests that fail are put into `failed` with the reason and an HTTP status. `in_use` returns the
    digests of the requests that have started. `left` is called with the digest of an adapter that leaves memory."""

    def __init__(self, known: KnownAdapters, parts: AdapterParts, left: Callable[[str], None]) -> None:
        self.known, self.parts, self.left = known, parts, left
        self.waiting: deque[WorkerRequest] = deque()
        self.failed: list[tuple[WorkerRequest, str, int]] = []
        self.checks = AdapterChecks({digest for digest, one in known.by_digest.items() if one.is_loaded})
        # Adapters that were read and have no room yet, and those that are being read.
        self.ready: dict[str, AdapterRead] = {}
        self.reading: set[str] = set()
        self.changed = False

    def submit(self, request: WorkerRequest) -> bool:
        """Take a request. Return whether it may start at once."""
        digest = request.submit.adapter
        if not digest:
            return True
        one = self.known.by_digest.get(digest)
        if one is not None and one.is_loaded and not self.ready:
            self.known.use(digest)
            return True
        self.waiting.append(request)
        return False

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return len(self.waiting)

    def cancel(self, request: WorkerRequest) -> bool:
        """Stop waiting for a request's adapter. Return whether the request was waiting here."""
        if request in self.waiting:
            self.waiting.remove(request)
            return True
        return False

    def want(self, digest: str) -> None:
        """Have an adapter read, unless it is in memory."""
        one = self.known.by_digest.get(digest)
        if one is None or one.is_loaded or digest in self.reading or digest in self.ready:
            return
        self.reading.add(digest)
        self.parts.read(digest, one.directory)

    def poll(self, in_use: Callable[[], Iterable[str]]) -> list[WorkerRequest]:
        """Take what was read. Return the requests whose adapters are in memory now, in order: none before one that
        waits for room, or room would never come."""
        # Most workers never read one.
        for read in self.parts.take() if self.parts.last else ():
            self.take(read)
        started: list[WorkerRequest] = []
        for digest in [digest for digest in self.ready if not self.is_awaited(digest)] if self.ready else ():
            # Nobody asks for it yet: it takes nobody's room.
            if self.known.memory is not None and self.known.nbytes + self.ready[digest].nbytes > self.known.memory:
                self.parts.drop(self.ready.pop(digest))
            else:
                self.put(digest, self.ready.pop(digest))
        while self.waiting and self.has_room(self.waiting[0], in_use):
            started.append(self.waiting.popleft())
        return started

    def is_awaited(self, digest: str) -> bool:
        return any(request.submit.adapter == digest for request in self.waiting)

    def has_room(self, request: WorkerRequest, in_use: Callable[[], Iterable[str]]) -> bool:
        """Return whether a request's adapter is in memory, which it enters here if there is room. Only that of the
        first one is read, so that no more than one waits beside the limit."""
        digest = request.submit.adapter
        if not self.known.by_digest[digest].is_loaded:
            if (read := self.ready.get(digest)) is None:
                self.want(digest)
                return False
            leaving = self.known.room_for("it", read.nbytes, {*in_use()})
            if leaving is None:
                return False
            for one in leaving:
                self.leave(one.used.digest)
            self.put(digest, self.ready.pop(digest))
        self.known.use(digest)
        return True

    def take(self, read: AdapterRead) -> None:
        digest, reason = read.job.digest, read.reason
        self.reading.discard(digest)
        if digest not in self.known.by_digest:
            self.parts.drop(read)
            return
        self.changed = True
        if not reason:
            try:
                self.known.room_for("it", read.nbytes, ())
                self.ready[digest] = read
            except ModelError as error:
                reason = str(error)
                self.parts.drop(read)
        if not reason:
            self.checks.loaded.add(digest)
            self.checks.failed.pop(digest, None)
            return
        self.checks.loaded.discard(digest)
        self.checks.failed[digest] = reason
        logger.warning("an adapter cannot be loaded: %s", reason)
        for request in [one for one in self.waiting if one.submit.adapter == digest]:
            self.waiting.remove(request)
            self.failed.append((request, reason, 503))

    def put(self, digest: str, read: AdapterRead) -> None:
        """Have the model compute with an adapter. No step runs now."""
        self.known.load(digest, read.nbytes)
        self.parts.put(read, self.known.by_digest[digest].used.number)
        self.changed = True

    def leave(self, digest: str) -> None:
        """Have the model compute no more with an adapter, and free its memory. No step runs now."""
        one = self.known.by_digest[digest]
        self.parts.remove(one.used.number)
        self.left(digest)
        one.is_loaded, self.changed = False, True

    def retire(self, asked: Callable[[], Container[str]]) -> None:
        """Free the memory of adapters that have no name any more, and forget them, once no request has `asked` for
        them: who comes with one later says where its files are."""
        if not (nameless := self.known.nameless):
            return
        digests = asked()
        for one in [one for one in nameless if one.used.digest not in digests]:
            if one.is_loaded:
                self.leave(one.used.digest)
            self.forget(one.used.digest)

    def forget(self, digest: str) -> None:
        """Know nothing more of an adapter that is not in memory, nor that it was loaded once: its files may change."""
        if (read := self.ready.pop(digest, None)) is not None:
            self.parts.drop(read)
        self.checks.forget(digest)
        self.known.forget(digest)

    @property
    def memory(self) -> list[str]:
        """The digests of the adapters in memory."""
        return sorted(digest for digest, one in self.known.by_digest.items() if one.is_loaded)

    def close(self) -> None:
        self.parts.close()
