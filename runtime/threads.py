# SPDX-License-Identifier: Apache-2.0
"""Threads and tasks that survive their exceptions: each one is logged and counted, and the thread goes on. Waits of
tasks that lose no cancellation: who goes on after one keeps its process from ending."""

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

# Pauses of a thread that fails again and again: doubled with each failure, but short enough not to delay a join.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
# After running this long without a failure, a thread starts again with the first pause.
WELL_SECONDS = 10.0
# Per thread name, at most one traceback in this many seconds is logged; every failure is counted.
LOG_EVERY_SECONDS = 1.0
# The time a thread gets to end once it was closed.
JOIN_TIMEOUT = 5.0
LOG = logging.getLogger("pontil.threads")
Job = TypeVar("Job")


class ThreadFailures:
    """The number of uncaught exceptions of each thread or task of a process, by its name. Thread-safe.

    A name keeps its count after its thread has ended, so that the sum only grows.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_name: Counter[str] = Counter()
        self.logged_at: dict[str, float] = {}

    def contain(self, name: str, work: Callable[..., object], *given: Any) -> BaseException | None:
        """Call `work` and return what it raised, counted under `name`, or None. The one broad except for threads and
        event loop callbacks: it catches BaseException since extensions raise that, too."""
        try:
            work(*given)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self.note(name, error)
            return error
        return None

    def note(self, name: str, error: BaseException) -> None:
        now = time.monotonic()
        with self.lock:
            self.by_name[name] += 1
            is_news = now - self.logged_at.get(name, -LOG_EVERY_SECONDS) >= LOG_EVERY_SECONDS
            if is_news:
                self.logged_at[name] = now
        if is_news:
            LOG.error("the thread %s failed by a fault of ours and goes on", name, exc_info=error)

    def counts(self) -> Mapping[str, int]:
        with self.lock:
            return dict(self.by_name)


class GuardedThread(threading.Thread):
    """A thread that calls `work` until it returns. When `work` raises, `mend` gets the exception, so that it can end
    and answer what was in progress, and `work` is called again after a pause; with `again` False the thread ends
    instead.

    The class that starts a thread stops `work`, and joins the thread within a time (test_traps.py).
    """

    def __init__(
        self,
        work: Callable[[], None],
        name: str,
        failures: ThreadFailures | None = None,
        mend: Callable[[BaseException], None] | None = None,
        again: bool = True,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.work, self.mend, self.again = work, mend, again
        self.failures = failures or ThreadFailures()

    def run(self) -> None:
        pause, began = FIRST_PAUSE, time.monotonic()
        while (error := self.failures.contain(self.name, self.work)) is not None:
            if self.mend is not None:
                self.failures.contain(self.name, self.mend, error)
            if not self.again:
                return
            pause = next_pause(pause, time.monotonic() - began)
            threading.Event().wait(pause)
            began = time.monotonic()


class TurnThread:
    """A thread that calls `turn` when it is woken, and without that after as many seconds as the last call returned;
    None is for ever. Between two calls it only waits. Failures are handled as a GuardedThread's.

    After `close` it ends with the first call, begun later, that returns None, and calls `end`. The class that starts a
    thread closes it (test_traps.py).
    """

    def __init__(
        self,
        turn: Callable[[], float | None],
        name: str,
        failures: ThreadFailures | None = None,
        mend: Callable[[BaseException], None] | None = None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self.turn, self.end = turn, end
        self.woken, self.closing = threading.Event(), threading.Event()
        self.thread = GuardedThread(self.serve, name, failures, mend)

    def start(self) -> None:
        self.thread.start()

    @property
    def started(self) -> bool:
        return self.thread.ident is not None

    def wake(self) -> None:
        """Have `turn` called soon. Called from any thread, once what the call will look at is in place."""
        self.woken.set()

    def close(self, within: float = JOIN_TIMEOUT) -> bool:
        """Have the thread end, and return whether it has, within so many seconds. One that never started has ended."""
        self.closing.set()
        self.wake()
        if self.started:
            self.thread.join(within)
        return not self.thread.is_alive()

    def serve(self) -> None:
        has_ended = False
        while not has_ended:
            # Asked before the call: what was put in place before `close` is then seen by the last one.
            is_closing = self.closing.is_set()
            pause = self.turn()
            has_ended = is_closing and pause is None
            if not (has_ended or pause == 0.0):
                self.woken.wait(pause)
                self.woken.clear()
        self.end()


class JobThread(TurnThread, Generic[Job]):
    """A thread that calls `work` with each job, in the order in which they were put. When `work` raises, `mend` gets
    the job and the exception, so that it can end and answer it. `close` waits for the jobs put before."""

    def __init__(
        self,
        work: Callable[[Job], None],
        name: str,
        failures: ThreadFailures | None = None,
        mend: Callable[[Job, BaseException], None] | None = None,
    ) -> None:
        super().__init__(self.do_next, name, failures, self.give_up)
        self.work, self.mend = work, mend
        self.jobs: deque[Job] = deque()
        self.current: Job | None = None

    def put(self, job: Job) -> None:
        self.jobs.append(job)
        self.wake()

    def do_next(self) -> float | None:
        if not self.jobs:
            return None
        self.current = job = self.jobs.popleft()
        self.work(job)
        self.current = None
        return 0.0

    def give_up(self, error: BaseException) -> None:
        job, self.current = self.current, None
        if job is not None and self.mend is not None:
            self.mend(job, error)


def next_pause(last: float, worked: float) -> float:
    """Return the pause before the next call, after a failure that came when the thread had worked for so many
    seconds."""
    return FIRST_PAUSE if worked > WELL_SECONDS else min(LONGEST_PAUSE, 2 * last)


async def go_on(failures: ThreadFailures, work: Callable[..., Awaitable[None]], *given: Any) -> None:
    """Await `work` until it returns or is cancelled, as GuardedThread does in a thread; failures count under its
    name."""
    pause, began = FIRST_PAUSE, time.monotonic()
    while True:
        try:
            await work(*given)
            return
        except Exception as error:
            failures.note(work.__qualname__, error)
        pause = next_pause(pause, time.monotonic() - began)
        await asyncio.sleep(pause)
        began = time.monotonic()


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, so long at most; return whether it is set. A cancellation that comes together with it is
    raised, which `asyncio.wait_for` loses before Python 3.12."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([waiting], timeout=seconds)
    finally:
        waiting.cancel()
    return event.is_set()


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Do all of a work that has an end. Whoever was cancelled meanwhile is so afterwards."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    failure = task.exception()
    if cancelled is not None or failure is not None:
        raise cancelled or failure  # type: ignore[misc]
