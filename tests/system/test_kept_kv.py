# SPDX-License-Identifier: Apache-2.0
"""Workers of a real launch are killed, and the next ones have cached what they had."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from killed_workers import files_of, kill, wait_for_records
from served import ROOT, START_TIMEOUT, Served, launched, wait_for
from tiny_llama import write_tiny_llama

PROMPT = [3 + 7 * place % 200 for place in range(89)]
LONG = pytest.mark.long
OPTIONS = ("--kv-cache-memory", "8MiB", "--restart-delay", "0.1", "--share-devices")


def ask(served: Served) -> tuple[list[int], int]:
    """Return the answer and the number of cached tokens."""
    told: dict[str, Any] = served.complete(PROMPT, max_tokens=8, ignore_eos=True)
    cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
    return told["choices"][0]["token_ids"], cached


@contextmanager
def kept(folder: Path, model: str, *arguments: str) -> Iterator[Served]:
    with launched(
        folder, "--model", model, "--served-model-name", "smollm2-135m-instruct", *arguments, *OPTIONS
    ) as one:
        yield one


def warm(served: Served, blocks: int = 6) -> tuple[list[int], int]:
    """Have the prompt cached and recorded; return what a repetition gives."""
    assert ask(served)[1] == 0
    expected = ask(served)
    assert expected[1] == 88
    wait_for_records(served, blocks)
    return expected


def test_kv_outlives_a_worker_that_is_killed(tmp_path: Path, model: str) -> None:
    with kept(tmp_path, model, "--role", "mixed") as served:
        launcher, expected = served.process.pid, warm(served)
        files = files_of(launcher, "pontil-kv")
        kill(served, "mixed:0")
        assert ask(served) == expected
        # One file, which the worker has mapped: the memory is counted once.
        worker = served.topology()["mixed:0"]["pid"]
        assert len(files) == 1 and files_of(worker, "pontil-kv").keys() == files.keys()
        served.stop()
        assert not files_of(launcher, "pontil-kv") and not files_of(worker, "pontil-kv")


@LONG
def test_memory_with_which_a_worker_crashes_at_once_is_given_up(tmp_path: Path, model: str) -> None:
    """A worker that somebody else kills leaves it to the next one, however soon."""
    with kept(tmp_path, model, "--role", "mixed") as served:
        expected, files = warm(served), files_of(served.process.pid, "pontil-kv")
        for _ in range(2):
            kill(served, "mixed:0")
            assert ask(served) == expected
        kill(served, "mixed:0", number=signal.SIGSEGV)
        assert ask(served) == (expected[0], 0)
        now = files_of(served.process.pid, "pontil-kv")
        assert len(now) == 1 and now.keys() != files.keys()


@LONG
@pytest.mark.parametrize("killed", [("prefill:0",), ("decode:0",), ("prefill:0", "decode:0")], ids=" and ".join)
def test_a_pair_goes_on_with_what_was_cached(tmp_path: Path, model: str, killed: tuple[str, ...]) -> None:
    pair = ("--prefill", "cpu:0", "--decode", "cpu:0", "--disagg", "always")
    with kept(tmp_path, model, *pair) as served:
        expected = warm(served, 5)
        kill(served, *killed)
        assert ask(served) == expected


@LONG
@pytest.mark.parametrize("rank", [0, 1])
def test_kv_outlives_a_worker_of_two_ranks(tmp_path: Path, rank: int) -> None:
    write_tiny_llama(tmp_path / "model", num_kv_heads=2)
    with kept(tmp_path, str(tmp_path / "model"), "--role", "mixed", "--mixed", "cpu:0+cpu:1") as served:
        expected = warm(served)
        links = files_of(served.process.pid, "pontil-kv")
        kill(served, "mixed:0", rank=rank)
        assert ask(served) == expected
        assert len(links) == 2 and files_of(served.process.pid, "pontil-kv").keys() == links.keys()


@LONG
def test_another_model_under_the_same_name_finds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_tiny_llama(folder)
    with kept(tmp_path, str(folder), "--role", "mixed") as served:
        warm(served)
        files = files_of(served.process.pid, "pontil-kv")
        write_tiny_llama(folder, seed=8)
        kill(served, "mixed:0")
        assert ask(served)[1] == 0
        assert files_of(served.process.pid, "pontil-kv").keys() == files.keys()


@LONG
def test_without_the_option_nothing_is_kept(tmp_path: Path, model: str) -> None:
    with kept(tmp_path, model, "--role", "mixed", "--no-keep-kv") as served:
        assert ask(served)[1] == 0 and ask(served)[1] == 88
        assert not files_of(served.process.pid, "pontil-kv")
        kill(served, "mixed:0")
        assert ask(served)[1] == 0


@LONG
def test_memory_of_a_worker_that_is_removed_is_given_up(tmp_path: Path, model: str) -> None:
    with kept(tmp_path, model, "--prefill", "cpu:0", "--decode", "cpu:0,cpu:0") as served:
        assert len(files_of(served.process.pid, "pontil-kv")) == 3
        command = [sys.executable, str(ROOT / "app.py"), "scale", "--decode", "1", "--port", str(served.port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(files_of(served.process.pid, "pontil-kv")) == 2


@LONG
def test_a_restart_by_an_operator_keeps_what_is_cached(tmp_path: Path, model: str) -> None:
    with kept(tmp_path, model, "--role", "mixed") as served:
        expected = warm(served)
        command = [sys.executable, str(ROOT / "app.py"), "restart", "mixed:0", "--force", "--port", str(served.port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        wait_for(served.is_ready, START_TIMEOUT, "readiness")
        assert ask(served) == expected
