# SPDX-License-Identifier: Apache-2.0
"""A process that is stopped, and then runs a small part of the time."""

import signal
import threading
from contextlib import suppress
from types import TracebackType

import psutil
from process_state import has_ended

# Seconds of one turn, and the part of it in which the process runs unless another is given.
TURN, SHARE = 0.5, 0.01


class SlowProcess:
    """A process that is stopped by `stop`, slow from `crawl` on, and as fast as it was after the block. It may be
    killed for its silence meanwhile."""

    def __init__(self, process: psutil.Process, share: float = SHARE) -> None:
        self.process, self.share, self.over = process, share, threading.Event()
        self.thread = threading.Thread(target=self.turns)

    def __enter__(self) -> "SlowProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.over.set()
        if self.thread.is_alive():
            self.thread.join()
        self.send(signal.SIGCONT)

    @property
    def has_ended(self) -> bool:
        return has_ended(self.process)

    def stop(self) -> None:
        self.send(signal.SIGSTOP)

    def crawl(self) -> None:
        self.thread.start()

    def turns(self) -> None:
        while not self.over.is_set():
            self.send(signal.SIGCONT)
            self.over.wait(TURN * self.share)
            self.send(signal.SIGSTOP)
            self.over.wait(TURN * (1 - self.share))

    def send(self, number: signal.Signals) -> None:
        with suppress(psutil.NoSuchProcess):
            self.process.send_signal(number)
