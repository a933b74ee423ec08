# SPDX-License-Identifier: Apache-2.0
"""A stream for log lines whose writers never block: lines that a reader does not take in time are dropped and counted.

A terminal that was stopped (Ctrl-S), a pager, a pipe whose reader hangs or a launcher under SIGSTOP takes nothing more
after a few kilobytes. A plain write would then block the process that logs, and in the end every process of a launch.
"""

import io
import os
import select
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

# Bytes that are buffered without a reader; beyond them the oldest lines are dropped.
MOST_BYTES = 1 << 20
# Seconds between checks, by a thread that waits for a pipe's reader, whether it should end.
LOOK_SECONDS = 0.2
UNSHARED = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
Put = Callable[[int, bytes], int]


class NonBlockingWriter(io.TextIOBase):
    """A writer to `descriptor`, which stays its owner's. `write` never blocks and never raises; `notice` makes the line
    that says how many are missing, once there is a reader again.

    With `prompt`, data that the descriptor accepts at once is written at once, by a `put` that does not block, so that
    a crashing process gets its last lines out; the rest, and everything without `prompt`, is written by a thread.
    """

    def __init__(
        self, descriptor: int, notice: Callable[[int], str], prompt: bool = False, put: Put = os.write
    ) -> None:
        super().__init__()
        self.descriptor, self.notice, self.prompt, self.put = descriptor, notice, prompt, put
        self.wakeup = threading.Condition()
        self.queue: deque[bytes] = deque()
        # The rest of a line that was written in part and can no longer be dropped.
        self.begun = b""
        self.held = self.lost = 0
        self.busy = self.stopping = self.broken = False
        self.thread: threading.Thread | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def fileno(self) -> int:
        return self.descriptor

    def isatty(self) -> bool:
        return os.isatty(self.descriptor)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        data = text.encode(errors="replace")
        with self.wakeup:
            if self.broken:
                return len(text)
            if self.prompt and not (self.queue or self.begun or self.busy):
                data = self.begun = self.push(data)
            elif data:
                self.keep(data)
            if data:
                self.wake()
        return len(text)

    def push(self, data: bytes) -> bytes:
        """Write as much as the descriptor accepts now, and return the rest."""
        try:
            return data[self.put(self.descriptor, data) :]
        except BlockingIOError:
            return data
        except OSError:
            self.broken = True
            return b""

    def keep(self, data: bytes) -> None:
        self.queue.append(data)
        self.held += len(data)
        while self.held > MOST_BYTES and len(self.queue) > 1:
            oldest = self.queue.popleft()
            self.held -= len(oldest)
            self.lost += oldest.count(b"\n")

    def wake(self) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="log", daemon=True)
            self.thread.start()
        self.wakeup.notify()

    def run(self) -> None:
        while (piece := self.next_piece()) is not None:
            self.deliver(piece)

    def next_piece(self) -> bytes | None:
        """Wait for something to write; None at the end."""
        with self.wakeup:
            self.busy = False
            self.wakeup.wait_for(lambda: self.stopping or self.begun or self.queue)
            if self.broken or not (self.begun or self.queue):
                return None
            self.busy = True
            if self.begun:
                piece, self.begun = self.begun, b""
                return piece
            piece = self.queue.popleft()
            self.held -= len(piece)
            lost, self.lost = self.lost, 0
        return piece if not lost else f"{self.notice(lost)}\n".encode() + piece

    def deliver(self, data: bytes) -> None:
        """Wait for the reader as long as it takes. Only `finish` waits for this thread, and only briefly."""
        while data and not self.broken:
            if self.prompt and not self.can_write():
                continue
            data = self.push(data)

    def can_write(self) -> bool:
        poller = select.poll()
        poller.register(self.descriptor, select.POLLOUT)
        return bool(poller.poll(LOOK_SECONDS * 1000))

    def finish(self, within: float) -> bool:
        """Stop, and return whether everything could be written within so many seconds."""
        with self.wakeup:
            self.stopping = True
            self.wakeup.notify()
        if self.thread is not None:
            self.thread.join(max(0.0, within))
            return not self.thread.is_alive()
        return True


def open_outlet(descriptor: int, notice: Callable[[int], str]) -> NonBlockingWriter:
    """Open a writer for a stream that other processes share, such as a launcher's standard error. Its O_NONBLOCK flag
    is shared by all of them, so the stream is opened anew if possible, and else each call asks not to block."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return NonBlockingWriter(descriptor, notice, prompt=True)
    if stat.S_ISSOCK(mode):
        return NonBlockingWriter(
            descriptor, notice, prompt=True, put=partial(send, socket.socket(fileno=os.dup(descriptor)))
        )
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with suppress(OSError):
            return NonBlockingWriter(os.open(f"/proc/self/fd/{descriptor}", UNSHARED), notice, prompt=True)
    return NonBlockingWriter(descriptor, notice)


def send(over: socket.socket, descriptor: int, data: bytes) -> int:
    return over.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def plain_notice(lost: int) -> str:
    return f"{lost} lines were left out: nobody read them in time"
