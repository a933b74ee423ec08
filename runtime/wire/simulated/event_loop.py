# SPDX-License-Identifier: Apache-2.0
"""An asyncio event loop over virtual time, in a process of the world, and connections of clients as transports."""

import asyncio
import asyncio.events
import heapq
import selectors
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pontil.runtime.wire.simulated.processes import WorldProcess
from pontil.runtime.wire.simulated.virtual_time import HERE, VirtualWorld

# Seconds of one turn of the loop, and of what is done in a thread.
TURN, THREAD = 30e-6, 0.3e-3
# Seconds by which a timer may be early.
RESOLUTION = 1e-9


class SocketSelector(selectors.BaseSelector):
    """Stands for epoll, and never waits: of zmq's descriptors those are ready whose sockets show an edge."""

    def __init__(self, process: WorldProcess) -> None:
        self.process = process
        self.keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self.keys[fileobj] = selectors.SelectorKey(fileobj, fileobj, events, data)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self.keys.pop(fileobj)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self.keys[fileobj]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self.keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return [(self.keys[fd], selectors.EVENT_READ) for fd in self.ready]

    @property
    def ready(self) -> list[int]:
        return [one.fd for one in self.process.sockets if one.signaled and one.fd in self.keys]


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop of one process. What runs in an executor is an event."""

    def __init__(self, process: WorldProcess) -> None:
        self.process = process
        # Built by create_server: makes the protocol of a connection.
        self.factory: Callable[[], Any] | None = None
        # Called when it is stopped.
        self.stopped: Callable[[], object] | None = None
        self.seen = SocketSelector(process)
        super().__init__(self.seen)
        self.set_exception_handler(note_failure)

    def time(self) -> float:
        return self.process.world.now()

    def _make_self_pipe(self) -> None:
        return

    def _close_self_pipe(self) -> None:
        return

    def _write_to_self(self) -> None:
        self.process.notify()

    def _ensure_fd_no_transport(self, fd: Any) -> None:
        return

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            try:
                result, error = func(*args), None
            except Exception as raised:  # an executor hands whatever it was to who awaits it
                result, error = None, raised
            self.call_soon(settle, future, result, error)
            self.process.notify()

        self.process.job(self.time() + THREAD, work)
        return future

    async def create_server(self, protocol_factory: Callable[[], Any], *args: Any, **options: Any) -> Any:
        self.factory = protocol_factory
        return ListeningServer()

    def stop(self) -> None:
        """Have the process end its server."""
        if self.stopped is not None:
            self.stopped()

    def turn(self) -> None:
        """Do what `_run_once` does, but for its waiting."""
        untyped: Any = self
        ready, timers, keys = untyped._ready, untyped._scheduled, self.seen.keys
        # As `ready` of the selector, which costs a good part of a turn.
        for socket in self.process.sockets:
            if socket.signaled and socket.fd in keys:
                ready.append(keys[socket.fd].data[0])
        if timers:
            end = self.time() + RESOLUTION
            while timers and timers[0]._when < end:
                handle = heapq.heappop(timers)
                handle._scheduled = False
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    @property
    def next_due(self) -> float | None:
        """The time of the next turn that has something to do."""
        untyped: Any = self
        if untyped._ready:
            return self.time()
        keys = self.seen.keys
        for socket in self.process.sockets:
            if socket.signaled and socket.fd in keys:
                return self.time()
        timers = untyped._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        return timers[0]._when if timers else None


def note_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Note that something that the loop called has raised. Of tasks nobody knows when they are found to have failed."""
    if "handle" in context:
        HERE.world.failures.append(f"{context['message']}: {context['exception']!r}")


def settle(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class ListeningServer:
    """Stands for asyncio's server: connections come by `LoopProcess.connect`."""

    sockets = ()

    def close(self) -> None:
        return

    def is_serving(self) -> bool:
        return True

    async def wait_closed(self) -> None:
        return

    async def start_serving(self) -> None:
        return


class LoopProcess(WorldProcess):
    """A process around an event loop."""

    def __init__(self, world: VirtualWorld, name: str) -> None:
        super().__init__(world, name)
        with self.inside():
            self.loop = VirtualLoop(self)

    def turn(self) -> float | None:
        asyncio.events._set_running_loop(self.loop)
        try:
            self.loop.turn()
        finally:
            asyncio.events._set_running_loop(None)
        self.world.spend(TURN)
        return self.loop.next_due

    def call(self, work: Callable[..., object], *given: Any) -> None:
        """Have the loop call something in its next turn, from outside."""
        if self.alive:
            self.loop.call_soon(work, *given)
            self.notify()

    def do(self, work: Callable[[], Any]) -> Any:
        """Do something at once as this process, within its loop."""
        with self.inside(), running(self.loop):
            made = work()
        self.notify()
        return made


@contextmanager
def running(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    asyncio.events._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio.events._set_running_loop(None)
