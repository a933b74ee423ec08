# SPDX-License-Identifier: Apache-2.0
"""Processes that guard the packed weights which they map."""

import hashlib
import os
import select
import signal
from contextlib import ExitStack, suppress
from pathlib import Path

from packed_loading import TIMEOUT, Loading, bits

from pontil.gpu_ops.kernels.weights.shelf import MappedShelf
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.worker.start.packed_guard import PackedGuard

IN_ORDER = 5


def digest(model: Path, cache: Path | None) -> bytes:
    return digest_of(bits(Loading(model, cache).model()))


def digest_of(parts: list[bytes]) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


class GuardedProcess:
    """Another process, which has the weights in a file and guards it. It reads them each time that it is told to, and
    ends in order with `IN_ORDER` by a SIGTERM."""

    def __init__(self, model: Path, cache: Path) -> None:
        (self.told, saying), (hearing, self.order) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                self.serve(Loading(model, cache), saying, hearing)
            finally:
                os._exit(2)
        os.close(saying)
        os.close(hearing)
        self.kind = self.hear(1)

    def guard(self) -> None:
        os.write(self.order, b"g")
        assert self.hear(1) == b"g"

    def serve(self, loading: Loading, saying: int, hearing: int) -> None:
        for number in (signal.SIGBUS, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(IN_ORDER if built and bits(built) else 1))
        built, guard, failures = loading.model(), PackedGuard(loading.shelf.mapped), ThreadFailures()
        os.write(saying, b"m" if isinstance(loading.shelf, MappedShelf) else b"w")
        assert select.select([hearing], [], [], TIMEOUT)[0] and os.read(hearing, 1) == b"g"
        with ExitStack() as opened:
            while guard.turn() == 0.0:
                pass
            assert all(one.leased for one in guard.files), "there is no lease"
            guard.begin(opened, failures)
            os.write(saying, b"g")
            while select.select([hearing], [], [], TIMEOUT)[0] and os.read(hearing, 1) == b"r":
                os.write(saying, digest_of(bits(built)))
        os._exit(1 if failures.counts() else 0)

    def hear(self, size: int) -> bytes:
        assert select.select([self.told], [], [], TIMEOUT)[0], "the process says nothing"
        return os.read(self.told, size)

    def read(self) -> bytes:
        os.write(self.order, b"r")
        return self.hear(32)

    def end(self) -> int:
        """Have the process end, unless it has by now, and return its exit code."""
        with suppress(BrokenPipeError):
            os.write(self.order, b"e")
        return self.wait()

    def wait(self) -> int:
        pid, self.pid = self.pid, 0
        os.close(self.order)
        os.close(self.told)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
