# SPDX-License-Identifier: Apache-2.0
"""A process that is stopped, and then runs a hundredth of the time."""

import os
import signal
import threading
from types import TracebackType

# Seconds of one turn, and the part of it in which the process runs.
TURN, SHARE = 0.5, 0.01


class SlowProcess:
    """The process `pid`: stopped by `stop`, slow from `crawl` on, and as fast as it was after the block."""

    def __init__(self, pid: int) -> None:
        self.pid, self.over = pid, threading.Event()
        self.thread = threading.Thread(target=self.turns)

    def __enter__(self) -> "SlowProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.over.set()
        if self.thread.is_alive():
            self.thread.join()
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def crawl(self) -> None:
        self.thread.start()

    def turns(self) -> None:
        while not self.over.is_set():
            os.kill(self.pid, signal.SIGCONT)
            self.over.wait(TURN * SHARE)
            os.kill(self.pid, signal.SIGSTOP)
            self.over.wait(TURN * (1 - SHARE))
