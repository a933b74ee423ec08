# SPDX-License-Identifier: Apache-2.0
"""Logging never blocks: a stopped reader loses lines, and learns how many."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from pontil.launcher.logs import non_blocking_writer as writer
from pontil.launcher.logs.log_files import LogFiles
from pontil.launcher.logs.non_blocking_writer import NonBlockingWriter, open_outlet, plain_notice

LINE = "x" * 99 + "\n"
MANY = 3 * writer.MOST_BYTES // len(LINE)
Launched = Callable[..., Any]
WaitUntil = Callable[[Callable[[], object]], None]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def read_until(descriptor: int, last: str) -> list[str]:
    text = ""
    while not text.endswith(last):
        text += os.read(descriptor, 65536).decode()
    return text.splitlines()


@pytest.mark.parametrize("prompt", [False, True])
def test_a_reader_that_stops_costs_lines_and_learns_how_many(pipe: tuple[int, int], prompt: bool) -> None:
    reading, writing = pipe
    os.set_blocking(writing, not prompt)
    out = NonBlockingWriter(writing, plain_notice, prompt)
    for number in range(MANY):
        out.write(f"{number:06d} {LINE}")
    assert out.held <= writer.MOST_BYTES, "memory is bounded"
    out.write("the last\n")
    lines = read_until(reading, "the last\n")
    notices = [int(line.split()[0]) for line in lines if "left out" in line]
    lost = sum(notices)
    kept = [int(line.split()[0]) for line in lines if re.fullmatch(r"\d{6} x+", line)]
    assert lost > 0 and len(kept) + lost == MANY == len(set(kept)) + lost and len(lines) == len(kept) + len(notices) + 1
    assert kept == sorted(kept) and kept[-1] == MANY - 1, "the newest are kept"
    out.write("and on\n")
    assert read_until(reading, "\n") == ["and on"]
    assert out.finish(10.0)


@pytest.mark.parametrize("prompt", [False, True])
def test_an_end_waits_only_a_moment_for_the_reader(pipe: tuple[int, int], prompt: bool) -> None:
    reading, writing = pipe
    os.set_blocking(writing, not prompt)
    out = NonBlockingWriter(writing, plain_notice, prompt)
    for _ in range(MANY):
        out.write(LINE)
    assert not out.finish(0.05)
    while out.thread is not None and out.thread.is_alive():
        if select.select([reading], [], [], 0.01)[0]:
            os.read(reading, 65536)


def test_what_fits_is_written_at_once_and_without_a_thread(pipe: tuple[int, int]) -> None:
    """A process that crashes has written its last lines."""
    reading, writing = pipe
    os.set_blocking(writing, False)
    out = NonBlockingWriter(writing, plain_notice, prompt=True)
    print("half a", file=out, end="")
    print(" line", file=out, flush=True)
    assert os.read(reading, 100) == b"half a line\n" and out.thread is None and out.finish(0.0)


@pytest.mark.parametrize("ends", [os.pipe, os.openpty, lambda: [one.detach() for one in socket.socketpair()]])
def test_no_kind_of_stream_makes_anybody_wait_or_is_changed(ends: Callable[[], Sequence[int]]) -> None:
    """Other processes write to the same stream, and expect it to block."""
    reading, writing = ends()
    out = open_outlet(writing, plain_notice)
    for _ in range(MANY):
        out.write(LINE)
    assert out.prompt and 0 < out.held <= writer.MOST_BYTES and out.lost
    assert os.get_blocking(writing) and not out.finish(0.0)
    os.close(reading)
    assert out.finish(10.0), "nobody reads any more"
    os.close(writing)


def test_a_file_takes_everything_at_once(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as file:
        out = open_outlet(file.fileno(), plain_notice)
        for _ in range(MANY):
            out.write(LINE)
        assert out.thread is None
    assert (tmp_path / "output").stat().st_size == MANY * len(LINE)


def test_a_reader_that_is_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for prompt in (False, True):
        out = NonBlockingWriter(writing, plain_notice, prompt)
        for _ in range(3):
            assert out.write(LINE) == len(LINE)
        assert out.finish(10.0)
    os.close(writing)


def test_a_log_file_that_is_a_pipe_makes_nobody_wait(tmp_path: Path) -> None:
    files = LogFiles(tmp_path / "logs", 1 << 20, 3)
    files.open()
    os.mkfifo(tmp_path / "logs" / "proxy.log")
    assert "cannot be written" in str(files.write("proxy", "a line"))
    files.close()


def test_a_launch_whose_output_nobody_reads_serves_and_ends(
    launched: Launched, waiting: WaitUntil, all_gone: Callable[[Any], None]
) -> None:
    """Children log more than every pipe holds; then one is killed and restarted; then SIGTERM."""
    launch = launched({"proxy": ["ready", "listen"], "decode:0": ["ready", "obey"], "mixed:0": ["ready", "log much"]})
    waiting(lambda: any(row["state"].lower() == "ready" for row in table(launch) if row["name"] == "decode:0"))
    first = launch.children()["decode:0"]
    first.kill()
    waiting(lambda: launch.children().get("decode:0", first).pid != first.pid)
    family = list(launch.children().values())
    launch.process.send_signal(signal.SIGTERM)
    assert launch.process.wait(60) == 0
    all_gone(family)


def table(launch: Any) -> list[dict[str, Any]]:
    """Return the last table sent to the proxy."""
    told = [command["rows"] for command in launch.commands() if command["kind"] == "table"]
    return told[-1] if told else []


def test_a_child_goes_on_while_its_launcher_is_stopped(launched: Launched, waiting: WaitUntil) -> None:
    """The child logs more than its pipe holds, and then goes on; a resumed launcher reports the missing lines."""
    launch = launched({"decode:0": ["ready", "log much when told"]}, limits={"silence": 60.0})
    launch.until("ready after")
    launch.process.send_signal(signal.SIGSTOP)
    waiting(lambda: psutil.Process(launch.process.pid).status() == psutil.STATUS_STOPPED)
    Path(launch.trace.parent, "trace.go").touch()
    waiting(lambda: Path(launch.trace.parent, "trace.said").exists())
    launch.process.send_signal(signal.SIGCONT)
    launch.until("lines were left out")
    launch.until("all is said")


def test_exit_codes_and_sentences_are_as_they_were(tmp_path: Path) -> None:
    """A launch that fails writes the reason as its last line."""
    app = Path(__file__).resolve().parents[3] / "app.py"
    command = [sys.executable, str(app), "launch", "--role", "mixed", "--model", str(tmp_path / "none"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.decode().rstrip().splitlines()[-1].startswith("Error: ")
