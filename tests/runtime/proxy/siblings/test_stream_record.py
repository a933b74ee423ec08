# SPDX-License-Identifier: Apache-2.0
"""Records of streams: claimed by one at a time, by anybody once the owner is gone, and whole whenever it went."""

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.resume.resumable import taken
from pontil.runtime.proxy.siblings import stream_record
from pontil.runtime.proxy.siblings.leases import Siblings
from pontil.runtime.proxy.siblings.stream_record import StreamRecord, StreamRecords, json_line

ROOT = Path(__file__).resolve().parents[4]
HEAD = {"request": "r", "prompt": [1, 2], "caller": "-"}
OWNERS = ("one", "two", "three")


class Claims(RuleBasedStateMachine):
    """Three proxies that claim, write, let go, end and die in any order. `tokens` is what the client has, at most a
    line more than the record: it is told before it is recorded."""

    @initialize(folder=st.integers())
    def begin(self, folder: int) -> None:
        self.folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"claims-{os.getpid()}-{id(self)}"
        self.records = {name: StreamRecords(self.folder) for name in OWNERS}
        self.owner: str | None = "one"
        self.held: StreamRecord | None = self.records["one"].begin(HEAD)
        self.name, self.written, self.over = self.held.name, 0, False

    @precondition(lambda self: self.held is not None)
    @rule()
    def write(self) -> None:
        assert self.held is not None
        self.held.append({"number": self.written})
        self.written += 1

    @precondition(lambda self: self.held is not None)
    @rule(cut=st.integers(0, 12))
    def die(self, cut: int) -> None:
        """End without a word, in the middle of a line."""
        assert self.held is not None
        os.write(self.held.lease.descriptor, b'{"number": -1}\n'[: min(cut, 12)])
        os.close(self.held.lease.descriptor)
        self.owner = self.held = None

    @precondition(lambda self: self.held is not None)
    @rule()
    def let_go(self) -> None:
        assert self.held is not None
        self.held.release()
        self.owner = self.held = None

    @precondition(lambda self: self.held is not None and self.written > 3)
    @rule()
    def end(self) -> None:
        assert self.held is not None
        self.held.end()
        self.owner, self.held, self.over = None, None, True

    @rule(who=st.sampled_from(OWNERS), then_keeps=st.booleans())
    def claim(self, who: str, then_keeps: bool) -> None:
        try:
            found = self.records[who].claim(self.name)
        except KeyError:
            assert self.over
            return
        assert not self.over and (found is None) == (self.owner is not None), "one owner at a time"
        if found is None:
            return
        assert [line["number"] for line in found.lines[1:]] == list(range(self.written)), "every whole line, in order"
        assert found.head == HEAD
        if then_keeps:
            self.owner, self.held = who, found
        else:
            found.release()

    @rule(who=st.sampled_from(OWNERS))
    def sweep(self, who: str) -> None:
        found = self.records[who].unowned(set(), 60.0)
        assert len(found) == (not self.over and self.owner is None)
        for one in found:
            one.release()

    @invariant()
    def is_seen(self) -> None:
        assert self.records["two"].requests() == ([] if self.over else ["r"])

    def teardown(self) -> None:
        if self.held is not None:
            self.held.release()
        shutil.rmtree(self.folder)


TestClaims = Claims.TestCase
TestClaims.settings = settings(stateful_step_count=20)


def test_a_lock_ends_with_its_process_and_two_claim_it_once(tmp_path: Path) -> None:
    script = (
        "import sys, app; from pathlib import Path; from pontil.runtime.proxy.siblings.stream_record "
        "import StreamRecords; "
        f"made = StreamRecords(Path(sys.argv[1])).begin({HEAD!r}); made.append({{'number': 0}}); "
        "print(made.name, flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert process.stdout is not None
    name, records = process.stdout.readline().strip(), StreamRecords(tmp_path)
    assert records.claim(name) is None and records.about(name) == HEAD | {"prompt": 2}
    process.send_signal(signal.SIGKILL)
    process.communicate()
    first = records.claim(name)
    assert first is not None and first.last == {"number": 0} and StreamRecords(tmp_path).claim(name) is None
    first.end()
    with pytest.raises(KeyError):
        records.claim(name)


@contextmanager
def looking(monkeypatch: pytest.MonkeyPatch, look: Callable[[], list[str]]) -> Iterator[list[list[str]]]:
    """Look before each system call by which a file gets its name, its lock and its content."""
    real = [(os, name, getattr(os, name)) for name in ("open", "write", "rename")] + [(fcntl, "flock", fcntl.flock)]
    looks: list[list[str]] = []

    def then(call: Callable[..., Any], *arguments: Any) -> Any:
        with monkeypatch.context() as still:
            for module, name, kept in real:
                still.setattr(module, name, kept)
            looks.append(look())
        return call(*arguments)

    with monkeypatch.context() as watched:
        for module, name, kept in real:
            watched.setattr(module, name, partial(then, kept))
        yield looks


def test_a_proxy_that_starts_is_not_taken_for_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another proxy looks at every moment at which it takes its lease."""
    other = Siblings(tmp_path, "other")
    with looking(monkeypatch, other.gone) as looks:
        started = Siblings(tmp_path, "started")
    assert len(looks) > 2 and not any(looks)
    assert other.gone() == [] and other.lives("started")
    started.close()
    assert other.gone() == [] and not other.lives("started")


def test_a_record_is_not_found_before_it_has_an_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another proxy looks at every moment at which the record is made."""
    other = StreamRecords(tmp_path)
    with looking(monkeypatch, lambda: [record.name for record in other.unowned(set(), 60.0)]) as looks:
        made = StreamRecords(tmp_path).begin(HEAD)
    assert len(looks) > 2 and not any(looks)
    assert other.requests() == ["r"] and other.claim(made.name) is None
    made.end()
    assert not os.listdir(tmp_path)


def test_a_record_that_was_half_made_is_removed_later(tmp_path: Path) -> None:
    records = StreamRecords(tmp_path)
    half, young = tmp_path / f"{'0' * 32}.stream.unborn", tmp_path / f"{'1' * 32}.stream.unborn"
    for path in (half, young):
        path.write_bytes(b'{"request"')
    os.utime(half, (1.0, 1.0))
    assert records.unowned(set(), 60.0) == [] and records.requests() == []
    assert os.listdir(tmp_path) == [young.name]


def test_a_full_disk_leaves_no_part_of_a_record_or_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = StreamRecords(tmp_path)
    made = records.begin(HEAD)

    def full(descriptor: int, data: bytes, real: Callable[[int, bytes], int] = os.write) -> int:
        return real(descriptor, data[:5])

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        with pytest.raises(Unavailable, match="cannot be kept"):
            records.begin(HEAD)
        with pytest.raises(OSError, match="No space"):
            made.append({"number": 0})
    made.append({"number": 1})
    made.release()
    assert os.listdir(tmp_path) == [f"{made.name}.stream"]
    found = records.claim(made.name)
    assert found is not None and found.lines == [HEAD, {"number": 1}]


def test_a_look_at_a_record_does_not_make_it_younger(tmp_path: Path) -> None:
    records = StreamRecords(tmp_path)
    made = records.begin(HEAD)
    os.write(made.lease.descriptor, b"cut sho")
    os.utime(made.lease.descriptor, (-1e9, -1e9))
    made.release()
    for _ in range(2):
        (found,) = records.unowned(set(), 60.0)
        assert found.lines == [HEAD] and records.age(found) > 1e8
        found.release()


def test_a_record_whose_time_was_never_set_ends(tmp_path: Path) -> None:
    made = (records := StreamRecords(tmp_path)).begin(HEAD)
    os.utime(made.lease.descriptor)
    made.release()
    (found,) = records.unowned(set(), 60.0)
    assert 0.0 <= records.age(found) < 60.0
    # Nor one that is known, whose last line was cut short by a full disk.
    os.utime(found.lease.descriptor)
    found.release()
    (found,) = records.unowned({made.name}, 60.0)
    assert 0.0 <= records.age(found) < 60.0
    found.release()
    assert records.unowned({made.name}, 60.0) == []


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_jump_of_the_clock_changes_no_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    records, real = StreamRecords(tmp_path), time.time
    made = records.begin(HEAD)
    made.append({"number": 0})
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    assert 0.0 <= records.age(made) < 600.0
    made.touch()
    assert 0.0 <= records.age(made) < 600.0


def test_records_are_private_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = StreamRecords(tmp_path / "streams")
    made = records.begin(HEAD | {"body": b"x" * 1000})
    assert (tmp_path / "streams").stat().st_mode & 0o077 == made.lease.path.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(stream_record, "MOST_BYTES", 1500)
    records.room.most = 1500
    with pytest.raises(Unavailable, match="no room"):
        records.begin(HEAD | {"body": b"x" * 1000})
    made.end()
    assert records.unowned(set(), 60.0) == []
    records.begin(HEAD | {"body": b"x" * 1000}).end()
    monkeypatch.setattr(stream_record, "MOST_RECORD", 100)
    with pytest.raises(Unavailable, match="no room"):
        records.begin(HEAD | {"body": b"x" * 1000})


def test_a_prompt_and_a_body_come_back_as_they_were(tmp_path: Path) -> None:
    records = StreamRecords(tmp_path)
    head = HEAD | {"prompt": [0, 10, 2**32 - 1], "body": b'{"\n": "\xff\r\n"}\n'}
    made = records.begin(head)
    made.append({"number": 0})
    made.release()
    found = records.claim(made.name)
    assert found is not None and found.lines == [head, {"number": 0}] and found.size == made.size
    assert StreamRecords(tmp_path).about(made.name) == head | {"prompt": 3, "body": len(head["body"])}
    found.end()


@pytest.mark.parametrize("left", [0, 1, 20, 60, 62, 70])
def test_a_record_that_is_cut_in_its_head_is_none(tmp_path: Path, left: int) -> None:
    records = StreamRecords(tmp_path)
    made = records.begin(HEAD | {"body": b"x\n" * 20})
    assert made.size > 70
    os.truncate(made.lease.path, left)
    made.release()
    with pytest.raises(KeyError):
        records.claim(made.name)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "about", [b"{}", b'{"prompt": -1}', b'{"prompt": "a"}', b'{"prompt": 1e99}', b'{"prompt": 0, "body": -9}', b"[]"]
)
def test_lengths_that_are_none_are_refused(about: bytes) -> None:
    assert stream_record.unpacked(about + b"\n\n\n\n\n\n") == (None, 0)


def test_a_record_of_an_earlier_version_keeps_no_row_open(tmp_path: Path) -> None:
    """Leave its row to be closed with those of its proxy, since nobody can go on with it."""
    records, name = StreamRecords(tmp_path), "0" * 32
    records.path_of(name).write_bytes(json_line(HEAD | {"body": "{}", "params": {}}) + b'{"answers":[]}\n')
    assert records.about(name)["caller"] == "-"
    assert records.requests() == [] and records.unowned(set(), 60.0) == []
    assert records.names() == [], "it is removed"


def test_orphans_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy looks twice a second."""
    owner, records = StreamRecords(tmp_path), StreamRecords(tmp_path)
    made = [owner.begin(HEAD | {"body": b"x" * 100_000}) for _ in range(3)]
    for one in made:
        one.release()
    orphans: dict[str, int] = {}
    for record in records.unowned(set(), 60.0, orphans):
        orphans[record.name] = record.size
        record.release()
    assert orphans.keys() == {one.name for one in made}
    read = list[str]()
    monkeypatch.setattr(stream_record, "read_lines", lambda descriptor: read.append("read"))
    monkeypatch.setattr(stream_record, "parsed", lambda line: read.append("parsed"))
    assert records.unowned(set(), 60.0, orphans) == [] and not read and len(orphans) == 3
    assert records.room.held == {"-": sum(one.size for one in made)}
    monkeypatch.undo()
    taken = owner.claim(made[0].name)
    assert taken is not None and records.unowned(set(), 60.0, orphans) == [] and len(orphans) == 2, "it has an owner"
    taken.append({"number": 0})
    taken.release()
    (again,) = records.unowned(set(), 60.0, orphans)
    assert again.last == {"number": 0}
    again.release()
    os.utime(made[1].lease.path, (-1e9, -1e9))
    made[2].lease.path.unlink()
    assert {record.name for record in records.unowned(set(), 60.0, orphans)} == {made[0].name, made[1].name}


def test_the_event_loop_reads_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is read whole when its stream goes on: megabytes, which other requests would wait for."""
    owner, records = StreamRecords(tmp_path), StreamRecords(tmp_path)
    made = owner.begin(HEAD)
    made.append({"number": 0})
    made.release()
    readers = list[int]()
    read_lines = stream_record.read_lines

    def read(descriptor: int) -> tuple[list[dict[str, Any]], int]:
        readers.append(threading.get_ident())
        return read_lines(descriptor)

    monkeypatch.setattr(stream_record, "read_lines", read)
    claimed = asyncio.run(taken(records, made.name))
    assert claimed is not None and claimed.last == {"number": 0}
    claimed.release()
    assert readers and threading.get_ident() not in readers


def test_one_caller_does_not_fill_the_room_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_record, "MOST_BYTES", 12 << 20)
    records, others = StreamRecords(tmp_path), StreamRecords(tmp_path)
    greedy, body = HEAD | {"caller": "greedy", "body": bytes(1 << 20)}, bytes(1 << 20)
    with pytest.raises(Unavailable, match="of which your API key has 5.0 MiB: ask for it without pontil-resume"):
        for _ in range(12):
            records.begin(greedy).release()
    records.begin(HEAD | {"caller": "ann", "body": body}).release()
    assert len(others.unowned(set(), 60.0)) == 6
    with pytest.raises(Unavailable):
        others.begin(greedy)
    for name in ("bob", "carol"):
        others.begin(HEAD | {"caller": name, "body": body})
