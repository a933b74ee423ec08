# SPDX-License-Identifier: Apache-2.0
"""A launch as a child process: its keys, its variables, its output and its end."""

import io
import os
from pathlib import Path
from typing import Any

import pytest

from pontil.launcher.child.process import memory_file
from pontil.launcher.cluster.child_launch import ChildLaunch, shell_code, without_options
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.keys.key_file import key_text, read_key_file

WORDS = ["--dry-run", "--on=host", "--role=prefill", "--prefill=cpu", "--join=tcp://127.0.0.1:7000"]
SECRET = "5e" * 32


def test_keys_in_memory_are_read_as_a_private_file() -> None:
    descriptor = memory_file("pontil-keys", key_text(SECRET).encode())
    try:
        path = Path(f"/proc/self/fd/{descriptor}")
        assert read_key_file(path) == SECRET == read_key_file(path), "also when they are read again"
        os.fchmod(descriptor, 0o644)
        with pytest.raises(OptionError, match="open to other users"):
            read_key_file(path)
    finally:
        os.close(descriptor)


def test_a_launch_has_its_keys_and_no_command_line_shows_them() -> None:
    before, echo = set(os.listdir("/proc/self/fd")), io.StringIO()
    made = ChildLaunch(WORDS, key_text(SECRET), os.environ | {"PONTIL_PREFILL": "cpu*99"}, echo)
    words: Any = made.process.args
    assert words[-len(WORDS) - 1 : -1] == WORDS and words[-1].startswith("--keys=/proc/self/fd/")
    assert not any(SECRET in word for word in words)
    assert made.wait() == made.ended == 0, echo.getvalue()
    assert made.lines[0].startswith("prefill:0") and echo.getvalue().splitlines() == list(made.lines)
    assert set(os.listdir("/proc/self/fd")) <= before
    refused = ChildLaunch(WORDS, key_text("short"), os.environ, io.StringIO())
    assert refused.wait() == 2 and "is not a key file" in refused.lines[-1]


def test_variables_set_no_options_of_a_part() -> None:
    given = {"PONTIL_ON": "ray", "PONTIL_CONFIG": "/c", "PONTIL_CACHE": "/x", "PONTIL_API_KEYS": "k", "PATH": "/bin"}
    assert without_options(given) == {"PONTIL_CACHE": "/x", "PONTIL_API_KEYS": "k", "PATH": "/bin"}


def test_codes_are_a_shells() -> None:
    assert [shell_code(code) for code in (0, 2, -9)] == [0, 2, 137]
