# SPDX-License-Identifier: Apache-2.0
"""Resources of this process, to be compared before and after something was opened and closed."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class OpenResources(NamedTuple):
    """Names of threads; counts of descriptors and of mapped KV pools."""

    threads: list[str]
    descriptors: int
    pools: int


def held() -> OpenResources:
    gc.collect()
    threads = sorted(thread.name for thread in threading.enumerate())
    pools = sum("memfd:" in line for line in Path("/proc/self/maps").read_text().splitlines())
    return OpenResources(threads, len(os.listdir("/proc/self/fd")), pools)


def open_files() -> set[tuple[str, str]]:
    """Return each descriptor of this process with its file."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return {(link.name, os.readlink(link)) for link in links if link.is_symlink()}


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """Demand that the block leaves no file open. Garbage of other tests may be closed meanwhile, so files are compared
    and not their number."""
    before = open_files()
    yield
    assert not open_files() - before, "a file is open"
