# SPDX-License-Identifier: Apache-2.0
"""Workers of a real launch are killed, and the next ones have cached what they had."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from served import START_TIMEOUT, Served, launched, wait_for

from pontil.runtime.cache.block_records import HEADER_BYTES, RECORD_BYTES, BlockRecords

PROMPT = [3 + 7 * place % 200 for place in range(89)]
OPTIONS = ("--kv-cache-memory", "8MiB", "--restart-delay", "0.1", "--share-devices")


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


def ask(served: Served) -> tuple[list[int], int]:
    """Return the answer and the number of cached tokens."""
    told: dict[str, Any] = served.complete(PROMPT, max_tokens=8, ignore_eos=True)
    cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
    return told["choices"][0]["token_ids"], cached


def kill(served: Served, *names: str) -> None:
    """Kill these processes, and wait until others serve in their place."""
    before = served.topology()
    for name in names:
        os.kill(before[name]["pid"], signal.SIGKILL)

    def replaced() -> bool:
        rows = served.topology()
        return all(rows[name]["pid"] not in (None, before[name]["pid"]) for name in names) and served.is_ready()

    wait_for(replaced, START_TIMEOUT, "a restart")


def wait_for_records(served: Served, blocks: int) -> None:
    """Wait until each worker has recorded so many blocks."""
    links = files_of(served.process.pid, "pontil-kv-records").values()
    wait_for(lambda: all(recorded(link) >= blocks for link in links), START_TIMEOUT, "recording")


def test_kv_outlives_a_worker_that_is_killed_once_and_not_one_that_dies_again_at_once(
    tmp_path: Path, model: str
) -> None:
    arguments = ("--model", model, "--served-model-name", "smollm2-135m-instruct", "--role", "mixed", *OPTIONS)
    with launched(tmp_path, *arguments) as served:
        launcher, first = served.process.pid, ask(served)
        expected = ask(served)
        assert expected == (first[0], 88)
        wait_for_records(served, 6)
        files = files_of(launcher, "pontil-kv")
        kill(served, "mixed:0")
        assert ask(served) == expected
        # One file, which the worker has mapped: the memory is counted once.
        worker = served.topology()["mixed:0"]["pid"]
        assert len(files) == 1 and files_of(worker, "pontil-kv").keys() == files.keys()
        wait_for_records(served, 6)
        kill(served, "mixed:0")
        assert ask(served) == (first[0], 0)
        assert files_of(launcher, "pontil-kv").keys() != files.keys() and len(files_of(launcher, "pontil-kv")) == 1
        served.stop()
        assert not files_of(launcher, "pontil-kv") and not files_of(worker, "pontil-kv")
