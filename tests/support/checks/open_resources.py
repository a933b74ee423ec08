# SPDX-License-Identifier: Apache-2.0
"""Resources of this process, to be compared before and after something was opened and closed."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from served import wait_for

# Seconds for what others hold for a moment: zmq connects sockets again that an earlier test left.
TIMEOUT = 30.0


def held() -> set[tuple[str, ...]]:
    """Return each thread, each descriptor with its file, and each mapped file that is only memory."""
    gc.collect()
    threads = {("thread", one.name, str(one.ident)) for one in threading.enumerate()}
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in line]
    return threads | {("file", *one) for one in open_files()} | {("memory", *line[4:6]) for line in mapped}


def open_files() -> set[tuple[str, str]]:
    """Return each descriptor of this process with its file."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return {(link.name, os.readlink(link)) for link in links if link.is_symlink()}


@contextmanager
def nothing_left() -> Iterator[None]:
    """Demand that the block leaves no thread, no descriptor and no memory. What others left may come and go meanwhile:
    what is compared is each thing and not their number, until nothing new is there."""
    before = held()
    yield
    with suppress(AssertionError):
        wait_for(lambda: held() <= before, TIMEOUT, "the end of what was opened")
    assert not held() - before


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """Demand that the block leaves no file open. Garbage of other tests may be closed meanwhile, so files are compared
    and not their number."""
    before = open_files()
    yield
    assert not open_files() - before, "a file is open"
