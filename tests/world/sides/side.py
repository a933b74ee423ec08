# SPDX-License-Identifier: Apache-2.0
"""A side on which a scenario is played: Linux with zmq, or the world."""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

# Seconds until something that is to happen counts as never happening. Nothing waits so long unless a row is wrong.
BOUND = 30.0
# Seconds between two looks, at first and later.
FIRST_LOOK, LAST_LOOK = 0.002, 0.05
# The directions of a link.
TO_SERVER, TO_CLIENT = "to the server", "to the client"


class SideProcess(ABC):
    """A process that makes the calls of ProcessCalls."""

    def do(self, call: str, *given: Any, **named: Any) -> Any:
        """Have it make a call, and return what that returned."""
        self.ask(call, *given, **named)
        return self.answer()

    @abstractmethod
    def ask(self, call: str, *given: Any, **named: Any) -> None:
        """Have it begin a call, whose `answer` is to be taken before the next."""

    @abstractmethod
    def answer(self) -> Any: ...

    @abstractmethod
    def number(self, descriptor: int) -> int:
        """Return the number by which the process knows a descriptor that it inherited."""

    @abstractmethod
    def signal(self, number: signal.Signals) -> None: ...

    @abstractmethod
    def has_gone(self) -> bool: ...

    @abstractmethod
    def shows_its_use(self) -> bool:
        """Return whether its supervisor can know its use of the CPU."""

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def resume(self) -> None: ...


class SilentLink(ABC):
    """A connection over a network between a `server` with the socket `r` and a `client` with the socket `d`, whose id
    is `w`."""

    server: SideProcess
    client: SideProcess

    @abstractmethod
    def silence(self, *ways: str) -> None:
        """Let nothing through to the server or to the client, or both."""

    @abstractmethod
    def mend(self) -> None: ...


class SideClient(Protocol):
    """The client's end of a connection: what has come over it, and whether its end has."""

    @property
    def data(self) -> bytes: ...

    @property
    def has_ended(self) -> bool: ...

    def send(self, data: bytes) -> None: ...

    def leave(self) -> None: ...


class Side(ABC):
    """One side. Its processes end with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def start(self, inherits: Sequence[int] = ()) -> SideProcess:
        """Start a process with these descriptors."""

    @abstractmethod
    def rest(self, seconds: float) -> None:
        """Let so much time pass."""

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def end_computation(self, until: str) -> None:
        """Let what computes `until` a file is there go on."""

    @abstractmethod
    def wakes(self, process: SideProcess, writes: int, reads: int, kind: str) -> bool:
        """Have a process report over a pipe; return whether that wakes who reads it."""

    @abstractmethod
    def open_link(self) -> SilentLink: ...

    @abstractmethod
    def unanswered_address(self, client: SideProcess) -> str:
        """Return an address from which the client never hears anything."""

    @abstractmethod
    def in_a_loop(self, play: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
        """Run a coroutine in an event loop, and return what it returns."""

    @abstractmethod
    def connect(self, server: Any, reads: bool = True) -> SideClient:
        """Connect to a server of the running loop."""

    @abstractmethod
    def end(self) -> None: ...

    def until(self, condition: Callable[[], bool], within: float = BOUND) -> bool:
        """Wait until a condition holds, and return whether it does in time."""
        end, pause = self.now() + within, FIRST_LOOK
        while not condition():
            if self.now() > end:
                return False
            self.rest(pause)
            pause = min(LAST_LOOK, 1.2 * pause)
        return True

    def ipc(self, name: str) -> str:
        return f"ipc://{self.folder}/{name}"

    def pipe(self) -> tuple[int, int]:
        """Return the reading and the writing end of a pipe, for processes to inherit; `drop` them then."""
        return os.pipe()

    def drop(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    def attempts(self, most: int, attempt: Callable[[], bool]) -> bool:
        """Return whether something that may happen has happened in one of so many attempts."""
        return any(attempt() for _ in range(most))
