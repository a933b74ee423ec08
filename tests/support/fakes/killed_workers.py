# SPDX-License-Identifier: Apache-2.0
"""Workers of a real launch that are killed, and the files in which their KV outlives them."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from served import START_TIMEOUT, Served, wait_for

from pontil.runtime.cache.block_records import HEADER_BYTES, RECORD_BYTES, BlockRecords


def files_of(pid: int, name: str) -> dict[int, Path]:
    """The anonymous files of this name that a process has open, by their inode."""
    found = {}
    with suppress(FileNotFoundError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if os.readlink(link).startswith(f"/memfd:{name} "):
                    found[link.stat().st_ino] = link
    return found


@contextmanager
def records_in(link: Path) -> Iterator[BlockRecords]:
    file = os.open(link, os.O_RDWR)
    try:
        blocks = (os.fstat(file).st_size - HEADER_BYTES) // RECORD_BYTES
        records = BlockRecords(file, blocks)
        yield records
        records.map.close()
    finally:
        os.close(file)


def recorded(link: Path) -> int:
    with records_in(link) as records:
        return len(records.all())


def kill(served: Served, *names: str, rank: int = 0, number: signal.Signals = signal.SIGKILL) -> None:
    """Kill these workers, or a rank of them, by this signal, and wait until others serve in their place."""
    before = {name: served.living(name).pid for name in names}
    served.kill(*names, rank=rank, number=number)
    for name, pid in before.items():
        served.living(name, after=pid)
    wait_for(served.is_ready, START_TIMEOUT, "readiness")


def wait_for_records(served: Served, blocks: int) -> None:
    """Wait until each worker has recorded so many blocks."""
    links = files_of(served.process.pid, "pontil-kv-records").values()
    wait_for(lambda: all(recorded(link) >= blocks for link in links), START_TIMEOUT, "recording")
