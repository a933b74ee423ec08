# SPDX-License-Identifier: Apache-2.0
"""A small model whose packed weights are shared however few they are, and a folder for them."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guarded_process import GuardedProcess
from tiny_llama import write_tiny_llama

from pontil.runtime.worker.start import packed_weights


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_weights, "LEAST_BYTES", 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_tiny_llama(tmp_path / "model", dtype="bfloat16")
    return tmp_path / "model"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def start(model: Path, cache: Path) -> Iterator[Callable[..., list[GuardedProcess]]]:
    """Start so many processes, one after the other, and have them guard the file unless they are still to be told."""
    started: list[GuardedProcess] = []

    def more(count: int, guarded: bool = True) -> list[GuardedProcess]:
        for _ in range(count):
            started.append(GuardedProcess(model, cache))
            if guarded:
                started[-1].guard()
        return started

    yield more
    for one in started:
        if one.pid:
            os.kill(one.pid, signal.SIGKILL)
            one.wait()
