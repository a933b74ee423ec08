# SPDX-License-Identifier: Apache-2.0
"""Log files: limited in size, readable only by their owner, and blocking no process when they fail."""

import errno
import os
import stat
from pathlib import Path

import pytest

from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.logs.log_files import RETRY_AFTER, LogFiles


def opened(folder: Path, size: int = 1000, count: int = 2) -> LogFiles:
    files = LogFiles(folder, size, count)
    files.open()
    return files


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_each_for_its_owner_only(tmp_path: Path) -> None:
    before = tmp_path / "logs" / "proxy.log"
    before.parent.mkdir()
    before.write_text("old\n")
    before.chmod(0o644)
    files = opened(tmp_path / "logs")
    files.write("proxy", "new")
    files.write("decode:0", "new")
    files.close()
    assert before.read_text() == "old\nnew\n" and (tmp_path / "logs/decode-0.log").read_text() == "new\n"
    assert mode(before) == mode(tmp_path / "logs/decode-0.log") == 0o600
    opened(tmp_path / "a/b").close()
    assert mode(tmp_path / "a/b") == 0o700


@pytest.mark.parametrize("count", [0, 1, 3])
def test_they_rotate_and_nothing_is_cut(tmp_path: Path, count: int) -> None:
    files = opened(tmp_path, size=40, count=count)
    lines = [f"line {number:02} of the log" for number in range(20)]
    for line in lines:
        assert files.write("proxy", line) is None
    files.write("proxy", "x" * 100)
    files.close()
    names = ["proxy.log", *(f"proxy.log.{number}" for number in range(1, count + 1))]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".lock") == sorted(names)
    assert (tmp_path / "proxy.log").read_text() == "x" * 100 + "\n", (
        "a line that is longer than a file has one to itself"
    )
    kept = "".join((tmp_path / name).read_text() for name in reversed(names[1:])).splitlines()
    assert kept == lines[len(lines) - len(kept) :] and len(kept) == 2 * count
    assert all((tmp_path / name).stat().st_size <= 40 for name in names[1:])


def test_an_appended_file_counts_what_it_has(tmp_path: Path) -> None:
    for _ in range(2):
        files = opened(tmp_path, size=20)
        files.write("proxy", "123456789")
        files.write("proxy", "123456789")
        files.close()
    assert (tmp_path / "proxy.log").stat().st_size == (tmp_path / "proxy.log.1").stat().st_size == 20


def test_a_folder_that_cannot_be_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"Logs cannot be written to .*file/logs \(Not a directory\): give --log-dir"):
        opened(tmp_path / "file" / "logs")
    first = opened(tmp_path / "logs")
    with pytest.raises(LaunchError, match=r"Another launch writes its logs to .*: give each a --log-dir"):
        opened(tmp_path / "logs")
    first.close()
    opened(tmp_path / "logs").close()


def test_a_full_disk_is_told_once_and_serving_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    files = LogFiles(tmp_path, 1000, 1, lambda: now[0])
    files.open()
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    assert "No space left on device" in str(files.write("proxy", "a"))
    assert files.write("proxy", "b") is None
    now[0] += RETRY_AFTER
    assert files.write("proxy", "c") is None, "told already"
    monkeypatch.setattr(os, "write", write)
    now[0] += RETRY_AFTER
    assert "3 lines are missing" in str(files.write("proxy", "d"))
    assert files.write("proxy", "e") is None
    files.close()
    assert (tmp_path / "proxy.log").read_text() == "d\ne\n"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "proxy.log").symlink_to(tmp_path / "precious")
    files = opened(tmp_path / "logs")
    assert "Too many levels of symbolic links" in str(files.write("proxy", "a"))
    files.close()
    assert not (tmp_path / "precious").exists()
