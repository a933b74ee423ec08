# SPDX-License-Identifier: Apache-2.0
"""Records of streams: claimed by one at a time, by anybody once the owner is gone, and whole whenever it went."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy import stream_record
from pontil.runtime.proxy.stream_record import StreamRecord, StreamRecords

ROOT = Path(__file__).resolve().parents[3]
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
        "import sys, app; from pathlib import Path; from pontil.runtime.proxy.stream_record import StreamRecords; "
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
    assert records.claim(name) is None and records.head_of(name) == HEAD
    process.send_signal(signal.SIGKILL)
    process.communicate()
    first = records.claim(name)
    assert first is not None and first.last == {"number": 0} and StreamRecords(tmp_path).claim(name) is None
    first.end()
    with pytest.raises(KeyError):
        records.claim(name)


def test_a_look_at_a_record_does_not_make_it_younger(tmp_path: Path) -> None:
    records = StreamRecords(tmp_path)
    made = records.begin(HEAD)
    os.write(made.lease.descriptor, b"cut sho")
    os.utime(made.lease.descriptor, (1.0, 1.0))
    made.release()
    for _ in range(2):
        (found,) = records.unowned(set(), 60.0)
        assert found.lines == [HEAD] and records.age(found) > 1e9
        found.release()


def test_records_are_private_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = StreamRecords(tmp_path / "streams")
    made = records.begin(HEAD | {"body": "x" * 1000})
    assert (tmp_path / "streams").stat().st_mode & 0o077 == made.lease.path.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(stream_record, "MOST_BYTES", 1500)
    with pytest.raises(Unavailable, match="no room"):
        records.begin(HEAD | {"body": "x" * 1000})
    made.end()
    assert records.unowned(set(), 60.0) == []
    records.begin(HEAD | {"body": "x" * 1000}).end()
    monkeypatch.setattr(stream_record, "MOST_RECORD", 100)
    with pytest.raises(Unavailable, match="no room"):
        records.begin(HEAD | {"body": "x" * 1000})
