# SPDX-License-Identifier: Apache-2.0
"""Blocks in use and shared memory, as they are read of a launch at rest."""

import mmap
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pontil.launcher.tools.chaos.launch_rest import SHARED_MEMORY, unused_segments, used_blocks_of


def row(name: str, total: int = 9, free: int = 9, state: str = "READY", **load: int) -> dict[str, Any]:
    told = {"in_flight": 0, "running": 0, "waiting": 0, "free_blocks": free, "total_blocks": total} | load
    return {"name": name, "role": name.partition(":")[0], "state": state, "load": told}


PROXY = {"name": "proxy", "role": "proxy", "state": "READY"}


def test_a_cache_of_another_size_is_no_lost_block() -> None:
    """A worker that starts again takes the memory that is free then."""
    before = used_blocks_of([PROXY, row("prefill:0", 5000, 5000), row("decode:0", 5000, 4998)])
    after = used_blocks_of([PROXY, row("prefill:0", 3578, 3578), row("decode:0", 6000, 5998)])
    assert before == after == {"prefill:0": 0, "decode:0": 2}


def test_a_lost_block_is_seen_in_a_larger_cache() -> None:
    assert used_blocks_of([row("decode:0", 9, 9)]) != used_blocks_of([row("decode:0", 20, 19)])


@pytest.mark.parametrize(
    "other",
    [
        row("decode:0", running=1),
        row("decode:0", waiting=1),
        row("decode:0", state="STARTING"),
        {"name": "decode:0", "role": "decode", "state": "READY"},
        PROXY | {"state": "STARTING"},
    ],
)
def test_nothing_is_said_while_somebody_works_or_is_missing(other: dict[str, Any]) -> None:
    assert used_blocks_of([PROXY, row("prefill:0"), other]) is None


@pytest.fixture
def segment() -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(dir=SHARED_MEMORY) as file:
        file.truncate(mmap.PAGESIZE)
        yield Path(file.name)


def test_shared_memory_is_left_once_nobody_has_mapped_it(segment: Path) -> None:
    """Memory that another launch or another program has mapped is no finding."""
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert segment.name not in unused_segments()
    assert segment.name in unused_segments()


def test_a_folder_in_the_memory_of_the_host_is_no_shared_memory() -> None:
    folder = Path(tempfile.mkdtemp(dir=SHARED_MEMORY))
    try:
        assert folder.name not in unused_segments()
    finally:
        shutil.rmtree(folder)
