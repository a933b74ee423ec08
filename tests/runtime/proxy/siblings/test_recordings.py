# SPDX-License-Identifier: Apache-2.0
"""A record of all proxies of a launch, by files in its folder."""

import asyncio
import errno
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from pontil.runtime.proxy.siblings.recordings import LINES, SESSION, RecordingExchange


class ListRecorder:
    """A recorder whose lines are in a list."""

    def __init__(self) -> None:
        self.wish, self.lines, self.lost, self.seconds = b"", list[bytes](), b"", -1.0
        self.heard = list[bytes]()

    def follow(self, wish: bytes, seconds: float) -> None:
        self.wish, self.seconds = wish, seconds

    def part(self) -> bytes:
        lines, self.lines = self.lines, []
        return b"".join(lines)

    def lose(self, part: bytes) -> None:
        self.lost += part

    def hear(self, part: bytes) -> None:
        self.heard.append(part)

    def leave(self) -> None:
        self.wish = b""


def proxies(folder: Path, count: int = 3) -> list[tuple[RecordingExchange, ListRecorder]]:
    made = []
    for number in range(count):
        exchange, recorder = RecordingExchange(folder, f"proxy:{number}"), ListRecorder()
        exchange.recorder = recorder
        made.append((exchange, recorder))
    return made


def look(those: list[tuple[RecordingExchange, ListRecorder]]) -> None:
    for exchange, _ in those:
        asyncio.run(exchange.look())


def test_all_proxies_record_for_the_one_that_is_asked_until_it_ends(tmp_path: Path) -> None:
    those = proxies(tmp_path)
    (first, own), (_, second), (_, third) = those
    look(those)
    assert first.begin(b"wish") and not list(tmp_path.glob("*.unborn"))
    look(those)
    assert (own.wish, second.wish, third.wish) == (b"", b"wish", b"wish")
    second.lines, third.lines = [b"2\n"], [b"3\n"]
    look(those[1:])
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob(f"*{LINES}")} == {0o600}
    look(those)
    assert own.heard == [b"2\n", b"3\n"]
    first.end()
    look(those)
    assert second.wish == third.wish == b"" and not list(tmp_path.iterdir())


def test_a_jump_of_the_clock_of_the_day_changes_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    those, shown = proxies(tmp_path, 2), time.time
    monkeypatch.setattr(time, "time", lambda: shown() + 7200.0)
    assert those[0][0].begin(b"wish")
    monkeypatch.setattr(time, "time", lambda: shown() - 7200.0)
    look(those)
    assert those[1][1].wish == b"wish" and 0.0 <= those[1][1].seconds < 60.0


def test_a_proxy_leaves_one_part_at_a_time(tmp_path: Path) -> None:
    those = proxies(tmp_path, 2)
    (first, own), (_, second) = those
    assert first.begin(b"wish")
    look(those)
    for number in range(3):
        second.lines.append(b"%d\n" % number)
        look(those[1:])
    assert len(list(tmp_path.glob(f"*{LINES}"))) == 1 and second.lines == [b"1\n", b"2\n"]
    look(those)
    look(those)
    assert own.heard == [b"0\n", b"1\n2\n"]


def test_one_record_is_made_at_a_time_and_that_of_a_dead_proxy_ends(tmp_path: Path) -> None:
    those = proxies(tmp_path)
    (first, _), (second, of_second), (third, of_third) = those
    assert first.begin(b"one")
    assert not second.begin(b"two") and len(list(tmp_path.glob(f"*{SESSION}"))) == 1
    look(those)
    of_third.lines = [b"3\n"]
    look([those[2]])
    assert first.own is not None
    # The kernel does this at a death.
    first.own.release()
    look(those[1:])
    assert of_second.wish == of_third.wish == b"" and not list(tmp_path.iterdir())
    assert second.begin(b"two")
    look(those[1:])
    assert of_third.wish == b"two" and third.followed is not None


def test_what_finds_no_room_on_the_disk_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    those = proxies(tmp_path, 2)
    (first, own), (other, second) = those
    assert first.begin(b"wish")
    look(those)

    def full(*given: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    second.lines = [b"1\n"]
    with monkeypatch.context() as changed:
        changed.setattr(Path, "rename", full)
        look(those[1:])
        assert second.lost == b"1\n" and not list(tmp_path.glob("*.new"))
        with pytest.raises(OSError, match="No space"):
            other.begin(b"another")
    second.lines = [b"2\n"]
    look(those[1:])
    look(those)
    assert own.heard == [b"2\n"]


def test_a_proxy_that_leaves_tells_what_it_has(tmp_path: Path) -> None:
    those = proxies(tmp_path, 2)
    (first, own), (second, recorder) = those
    assert first.begin(b"wish")
    look(those)
    recorder.lines = [b"last\n"]
    second.close()
    look(those[:1])
    assert own.heard == [b"last\n"]
