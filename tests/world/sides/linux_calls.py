# SPDX-License-Identifier: Apache-2.0
"""Calls about files, pipes, events and memory that a scenario has a process make."""

import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import zmq
from side import BOUND

from pontil.launcher.child.reporter import PipeReporter
from pontil.runtime.accounting.usage_file import FileWriter, UsageFile, open_to_read
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import KVStorage, epoch_after_data
from pontil.runtime.errors import TransferError
from pontil.runtime.foundation.line_pipe import LinePipe
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.transfer.connector import ConnectorOptions, Pull
from pontil.runtime.transfer.shm.connector import ShmConnector
from pontil.runtime.transfer.shm.copying_connector import CopyJob
from pontil.runtime.transfer.shm.peer_pool import PeerPool, describe

DONE = "done"
LAYOUT, SLOT = KVLayout(8, 1, 1, 1, "float32"), 3


def named(work: Callable[[], object]) -> str:
    """Return the name of the error that a call ends with, or that it is done."""
    try:
        work()
    except (OSError, zmq.ZMQError) as error:
        return errno.errorcode[error.errno or 0]
    return DONE


class LinuxCalls:
    """The calls of one process. Some are others in the world."""

    def __init__(self) -> None:
        self.failures = ThreadFailures()
        self.event = -1
        self.lock = -1
        self.log: UsageFile | None = None
        self.pool: KVStorage | None = None
        self.peer: Any = None

    # Events, pipes and locks.

    def make_event(self) -> int:
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return self.event

    def write_event(self, value: int) -> str:
        return named(lambda: os.eventfd_write(self.event, value))

    def read_event(self) -> int | str:
        found = list[int]()
        error = named(lambda: found.append(os.eventfd_read(self.event)))
        return found[0] if found else error

    def close_event(self) -> str:
        return named(lambda: os.close(self.event))

    def write_pipe(self, pipe: int, text: str) -> str:
        return named(lambda: os.write(pipe, text.encode()))

    def read_pipe(self, pipe: int) -> list[Any]:
        """Return all lines that have come, and whether the end has."""
        reader = LinePipe(pipe)
        lines = [line.decode() for line in reader.read_rest()]
        return [lines, reader.closed]

    def take_lock(self, path: str) -> str:
        self.lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return named(lambda: fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB))

    # The usage log.

    def open_log(self, path: str) -> str:
        try:
            self.log = UsageFile(Path(path), FileWriter("first"))
            self.log.opened(())
        except Exception as error:
            return str(error)
        return DONE

    def write_log(self, *names: str) -> None:
        """Commit rows of proxies."""
        assert self.log is not None
        self.log.write([FileWriter(name).row for name in names])

    def begin_writing(self, name: str) -> None:
        """Change the rows, and do not commit that."""
        assert self.log is not None and self.log.database is not None
        self.log.database.execute("BEGIN IMMEDIATE")
        self.log.database.execute("UPDATE proxies SET name = ?", (name,))

    def read_log(self, path: str) -> list[Any]:
        """Return the proxies that have rows, and the names in these."""
        database: sqlite3.Connection = open_to_read(Path(path))
        found = database.execute("SELECT incarnation, name FROM proxies ORDER BY incarnation").fetchall()
        database.close()
        return [list(row) for row in found]

    # Memory of which others map parts.

    def make_pool(self, blocks: int) -> None:
        self.pool = KVStorage(LAYOUT, blocks, torch.device("cpu"))

    def describe_pool(self) -> dict[str, Any]:
        assert self.pool is not None
        return {"kind": "shm", **describe(self.pool)}

    def set_epoch(self, epoch: int) -> None:
        assert self.pool is not None
        self.pool.set_epoch(SLOT, epoch)

    def compute(self, until: str) -> None:
        """Compute until a file is there, which its maker must have made within the bound."""
        end = time.monotonic() + BOUND
        while not Path(until).exists():
            assert time.monotonic() < end, f"{until} was not made"
            self.pause()

    def map_peer(self, descriptor: dict[str, Any]) -> str:
        """Open the memory of another process as a connector does."""
        try:
            self.peer = PeerPool(descriptor, "shm", LAYOUT.block_bytes, LAYOUT.kv_heads)
        except TransferError as error:
            return str(error)
        return DONE

    def read_epoch(self) -> int:
        return epoch_after_data(self.peer.epochs, SLOT)

    def peer_has_ended(self) -> bool:
        ended: bool = self.peer.ended
        return ended

    def make_connector(self, storage: KVStorage) -> ShmConnector:
        return ShmConnector(storage, lambda: None, ConnectorOptions(failures=self.failures))

    def moments_of_a_pull(self) -> int:
        """Copy two blocks that do not lie side by side; return the number of moments at which a part was read."""
        assert self.pool is not None
        connector, moments = self.make_connector(self.pool), set[float]()
        real = connector.must_end

        def must_end(job: CopyJob[PeerPool]) -> bool:
            self.pause()
            moments.add(time.monotonic())
            return real(job)

        connector.must_end = must_end  # type: ignore[method-assign]
        connector.copy(CopyJob(Pull("peer", [(0, 0), (2, 1)], SLOT), self.peer))
        connector.close()
        return len(moments)

    def pause(self) -> None:
        """Let a moment pass, which a clock tells from the next."""
        time.sleep(1e-3)

    # Reports to a supervisor.

    def report(self, pipe: int, kind: str) -> None:
        reporter = self.make_reporter(pipe)
        if kind == "heartbeat":
            reporter.send_beat()
        else:
            reporter.ready()

    def make_reporter(self, pipe: int) -> PipeReporter:
        return PipeReporter(pipe)
