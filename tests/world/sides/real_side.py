# SPDX-License-Identifier: Apache-2.0
"""Processes of Linux, with real zmq: forks that make the calls that come over a socket."""

import asyncio
import json
import os
import selectors
import signal
import socket
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from process_calls import ProcessCalls
from relay import BACK, THERE, Relay
from side import BOUND, TO_SERVER, Side, SideProcess, SilentLink
from side_clients import SocketClient

from pontil.launcher.child.system_process import GroupLeader

FIRST_FREE = 3
# Connections that fill the queue of a listener.
FILLERS = 4


class ForkedProcess(SideProcess):
    """A fork. It ends with its parent, whose end of the socket it reads to the end."""

    def __init__(self, inherits: Sequence[int]) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            keep(theirs.fileno(), inherits)
            serve(theirs)
        theirs.close()
        self.link = ours.makefile("rwb")
        ours.close()
        self.ended = False

    def ask(self, call: str, *given: Any, **named: Any) -> None:
        self.link.write(json.dumps([call, given, named]).encode() + b"\n")
        self.link.flush()

    def answer(self) -> Any:
        told = json.loads(self.link.readline())
        assert "error" not in told, told["error"]
        return told["result"]

    def number(self, descriptor: int) -> int:
        return descriptor

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def has_gone(self) -> bool:
        return GroupLeader(self.pid).has_ended()

    def shows_its_use(self) -> bool:
        return GroupLeader(self.pid).look(time.monotonic()) is not None

    def kill(self) -> None:
        if not self.ended:
            self.ended = True
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.link.close()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def resume(self) -> None:
        if not self.ended:
            os.kill(self.pid, signal.SIGCONT)


def keep(link: int, inherits: Sequence[int]) -> None:
    """Close all descriptors but these: an end of a pipe in another process is an end too."""
    first = FIRST_FREE
    for kept in sorted({link, *inherits}):
        os.closerange(first, kept)
        first = kept + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def serve(link: socket.socket) -> None:
    """Make the calls that come, and end without what the parent would do at its end."""
    calls = ProcessCalls(selectors.DefaultSelector)
    with link.makefile("rwb") as lines:
        for line in lines:
            call, given, named = json.loads(line)
            try:
                told = {"result": getattr(calls, call)(*given, **named)}
            except Exception:  # whatever it is, the parent raises it where it made the call
                told = {"error": traceback.format_exc()}
            lines.write(json.dumps(told).encode() + b"\n")
            lines.flush()
    os._exit(0)


class RelayedLink(SilentLink):
    """A connection over tcp through a relay."""

    def __init__(self, side: "RealSide") -> None:
        self.server, self.client = side.start(), side.start()
        port = int(self.server.do("serve", "r", "tcp://127.0.0.1:*").rpartition(":")[2])
        self.relay = Relay(("127.0.0.1", port))
        side.relays.append(self.relay)
        self.client.do("connect", "d", f"tcp://127.0.0.1:{self.relay.address[1]}", "w", wide=True)
        side.until(lambda: self.server.do("send", "r", "w", "hello") == "done")

    def silence(self, *ways: str) -> None:
        self.relay.held = frozenset(THERE if way == TO_SERVER else BACK for way in ways)

    def mend(self) -> None:
        self.relay.held = frozenset()


class RealSide(Side):
    """Linux."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.processes: list[ForkedProcess] = []
        self.relays: list[Relay] = []
        self.full: list[socket.socket] = []

    def start(self, inherits: Sequence[int] = ()) -> ForkedProcess:
        made = ForkedProcess(inherits)
        self.processes.append(made)
        return made

    def rest(self, seconds: float) -> None:
        """Let real time go by, where the fact of a scenario is that nothing happens in it."""
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()

    def end_computation(self, until: str) -> None:
        Path(until).touch()

    def wakes(self, process: SideProcess, writes: int, reads: int, kind: str) -> bool:
        process.do("report", writes, kind)
        with selectors.DefaultSelector() as selector:
            selector.register(reads, selectors.EVENT_READ)
            woken = bool(selector.select(BOUND))
        os.read(reads, 1 << 16)
        return woken

    def open_link(self) -> RelayedLink:
        return RelayedLink(self)

    def unanswered_address(self, client: SideProcess) -> str:
        """Return the address of a listener whose queue is full: the kernel drops what else would connect."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.full.append(listener)
        for _ in range(FILLERS):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            self.full.append(filler)
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    def in_a_loop(self, play: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
        return asyncio.run(play())

    def connect(self, server: Any, reads: bool = True) -> SocketClient:
        return SocketClient(server, reads)

    def end(self) -> None:
        for relay in self.relays:
            relay.close()
        for one in self.full:
            one.close()
        for process in self.processes:
            process.kill()
