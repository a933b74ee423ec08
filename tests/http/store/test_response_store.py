# SPDX-License-Identifier: Apache-2.0
"""Kept responses: bounded, private to their caller, gone after their time."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pontil.http.store.response_store import MOST_TURNS, KeptResponse, ResponseStore
from pontil.runtime.errors import PontilError, RequestError

MAKE = Callable[..., ResponseStore]


class StoreClock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> StoreClock:
    return StoreClock()


@pytest.fixture
def make(tmp_path: Path, clock: StoreClock) -> Iterator[MAKE]:
    made: list[ResponseStore] = []

    def build(most_bytes: int = 1 << 20, ttl: float = 100.0) -> ResponseStore:
        made.append(ResponseStore(tmp_path / "responses.db", most_bytes, ttl, clock))
        return made[-1]

    yield build
    for store in made:
        store.close()


def kept(number: int, previous: int | None = None, text: str = "") -> KeptResponse:
    name = f"resp_{number}"
    before = None if previous is None else f"resp_{previous}"
    head = {"id": name, "output": [], "model": "m"}
    return KeptResponse(name, before, head, [item(f"in_{number}")], [item(f"msg_{number}", text)])


def item(name: str, text: str = "") -> dict[str, Any]:
    return {"id": name, "text": text}


def names(items: list[dict[str, Any]] | None) -> list[str] | None:
    return None if items is None else [one["id"] for one in items]


def test_a_conversation_is_read_from_its_beginning(make: MAKE) -> None:
    store = make()
    for number in range(3):
        assert store.add("a", kept(number, number - 1 if number else None, "é"))
    assert names(store.conversation("a", "resp_2")) == ["in_0", "msg_0", "in_1", "msg_1", "in_2", "msg_2"]
    assert names(store.conversation("a", "resp_1", with_output=False)) == ["in_0", "msg_0", "in_1"]
    whole = json.loads(store.response("a", "resp_1") or b"")
    assert list(whole) == ["id", "output", "model"] and whole["output"] == [item("msg_1", "é")]
    assert store.outputs("a", ["resp_1", "resp_9"]) == whole["output"]


def test_a_conversation_with_a_gap_is_none(make: MAKE) -> None:
    store = make()
    for number in range(3):
        store.add("a", kept(number, number - 1 if number else None))
    assert store.remove("a", "resp_0") and not store.remove("a", "resp_0")
    assert store.conversation("a", "resp_2") is None and store.response("a", "resp_2") is not None


def test_nobody_sees_anothers(make: MAKE) -> None:
    store = make()
    store.add("a", kept(0))
    assert store.response("b", "resp_0") is None and store.conversation("b", "resp_0") is None
    assert store.outputs("b", ["resp_0"]) == []
    assert not store.remove("b", "resp_0")
    store.add("b", kept(1, 0))
    assert store.conversation("b", "resp_1") is None, "another's response before it is none"
    assert names(store.conversation("a", "resp_0")) == ["in_0", "msg_0"]


def test_time_ends_them_and_use_keeps_them(make: MAKE, clock: StoreClock) -> None:
    store = make(ttl=100)
    store.add("a", kept(0))
    store.add("a", kept(1))
    clock.now += 60
    store.add("a", kept(2, 0))
    clock.now += 60
    assert names(store.conversation("a", "resp_2")) == ["in_0", "msg_0", "in_2", "msg_2"], "going on is a use"
    assert store.response("a", "resp_1") is None and store.conversation("a", "resp_1") is None
    assert not store.remove("a", "resp_1")
    store.add("a", kept(3))
    assert store.database.execute("SELECT count(*) FROM responses").fetchone() == (3,), "the expired one is gone"


def work_of(store: ResponseStore, do: Callable[[], object]) -> int:
    """Return the instructions of SQLite's machine that this takes, in tens."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    store.database.set_progress_handler(step, 10)
    do()
    store.database.set_progress_handler(None, 10)
    return steps


def test_a_turn_costs_the_same_however_many_come_before_it(make: MAKE) -> None:
    store = make()
    costs = []
    for number in range(400):
        turn = kept(number, number - 1 if number else None)
        costs.append(work_of(store, lambda turn=turn: store.add("a", turn)))  # type: ignore[misc]
    assert 0 < max(costs[300:]) <= 2 * min(costs[2:50])
    early = kept(400, 1)
    assert work_of(store, lambda: store.add("a", early)) <= 2 * max(costs), "one that branches off"
    assert len(names(store.conversation("a", "resp_399")) or ()) == 800
    # Many forks: each begins where the one before it had not ended.
    for number in range(500, 900, 2):
        store.add("a", kept(number, number - 2 if number > 500 else 0))
        fork = kept(number + 1, number - 2 if number > 500 else 0)
        cost = work_of(store, lambda fork=fork: store.add("a", fork))  # type: ignore[misc]
        assert cost <= 20 * max(costs)


def test_a_fork_uses_what_it_began_from_and_lets_its_siblings_expire(make: MAKE, clock: StoreClock) -> None:
    store = make(ttl=100)
    store.add("a", kept(0))
    store.add("a", kept(1, 0))
    store.add("a", kept(2, 0))
    store.add("a", kept(3, 2))
    store.add("a", kept(4, 2))
    clock.now += 60
    store.add("a", kept(5, 4))
    clock.now += 60
    assert names(store.conversation("a", "resp_5")) == [
        "in_0", "msg_0", "in_2", "msg_2", "in_4", "msg_4", "in_5", "msg_5"
    ]  # fmt: skip
    clock.now += 60
    store.add("a", kept(6))
    assert store.database.execute("SELECT count(*) FROM responses").fetchone() == (1,)
    assert store.database.execute("SELECT count(*) FROM threads").fetchone() == (1,), "none is left without responses"


def test_the_oldest_of_whom_has_most_go_first(make: MAKE) -> None:
    store = make(most_bytes=10_000)
    store.add("small", kept(0, text="x" * 1000))
    for number in range(1, 20):
        assert store.add("big", kept(number, text="x" * 1000))
    left = {row[0] for row in store.database.execute("SELECT id FROM responses")}
    assert "resp_0" in left and "resp_19" in left and "resp_1" not in left and len(left) == 9
    rows, size = store.database.execute("SELECT sum(rows), sum(bytes) FROM sums").fetchone()
    assert (rows, size) == store.database.execute("SELECT count(*), sum(bytes) FROM responses").fetchone()
    assert size <= 10_000
    assert not store.add("big", kept(20, text="x" * 10_000)), "larger than everything"
    assert left == {row[0] for row in store.database.execute("SELECT id FROM responses")}


def test_the_sums_follow_removals(make: MAKE) -> None:
    store = make()
    store.add("a", kept(0))
    store.remove("a", "resp_0")
    assert store.database.execute("SELECT count(*) FROM sums").fetchone() == (0,)


def test_a_conversation_that_is_too_long_is_refused(make: MAKE, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make()
    store.add("a", kept(0, text="x" * 500))
    store.add("a", kept(1, 0, text="x" * 500))
    monkeypatch.setattr("pontil.http.store.response_store.MOST_LOADED", 1000)
    assert names(store.conversation("a", "resp_0")) == ["in_0", "msg_0"]
    with pytest.raises(RequestError, match="more than is read again"):
        store.conversation("a", "resp_1")
    with pytest.raises(RequestError, match="more than is read again"):
        store.outputs("a", ["resp_0", "resp_1"])
    monkeypatch.setattr("pontil.http.store.response_store.MOST_LOADED", 1 << 20)
    monkeypatch.setattr("pontil.http.store.response_store.MOST_TURNS", 1)
    with pytest.raises(RequestError, match="more than is read again"):
        store.conversation("a", "resp_1")
    assert MOST_TURNS > 1


def test_a_circle_ends(make: MAKE) -> None:
    """No request makes one; the file may be damaged."""
    store = make()
    store.add("a", kept(0))
    with store.database:
        store.database.execute("UPDATE responses SET previous = id")
    with pytest.raises(RequestError, match="more than is read again"):
        store.conversation("a", "resp_0")


def test_a_file_outlives_its_process_and_is_private(make: MAKE, tmp_path: Path) -> None:
    store = make()
    store.add("a", kept(0))
    store.close()
    assert make().response("a", "resp_0") is not None
    assert make(most_bytes=1).response("a", "resp_0") is None, "bounds hold from the start"
    assert os.stat(tmp_path / "responses.db").st_mode & 0o777 == 0o600


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello " * 1000)
    with sqlite3.connect(tmp_path / "other") as other:
        other.execute("CREATE TABLE mine (id)")
    other.close()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("text", "other", "link", "none/there", "."):
        with pytest.raises(PontilError, match="cannot (be opened|keep responses)"):
            ResponseStore(tmp_path / name, 1, 1)
    assert (tmp_path / "text").read_text() == "hello " * 1000 and not (tmp_path / "target").exists()
