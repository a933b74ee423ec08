# SPDX-License-Identifier: Apache-2.0
"""Old requests leave the usage log, and neither a bill nor the audit changes."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from usage_rows import DAY as FIRST_DAY
from usage_rows import PROXY, REQUEST, SHARE, WORKER

from pontil.runtime.accounting import removal
from pontil.runtime.accounting.audit import audit
from pontil.runtime.accounting.removal import DAY, PAUSE, PORTION, Removal
from pontil.runtime.accounting.usage_file import FileWriter, UsageFile, open_to_read
from pontil.runtime.accounting.usage_log import UsageLog
from pontil.runtime.accounting.usage_report import UsageSum, usage_sums
from pontil.runtime.accounting.usage_tables import LOST, OPEN, RequestRow, UsageRow

DEADLINE = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "usage.db"


def sums(path: Path) -> list[UsageSum]:
    with closing(open_to_read(path)) as database:
        return usage_sums(database)


def differences(path: Path) -> list[str]:
    with closing(open_to_read(path)) as database:
        return [one.text for one in audit(database) if not one.equal]


def names(path: Path) -> list[str]:
    with closing(open_to_read(path)) as database:
        return [name for (name,) in database.execute("SELECT id FROM requests ORDER BY id")]


def balanced(requests: list[RequestRow]) -> list[UsageRow]:
    """Return these rows with those of their shares, and a worker and a proxy that add up."""
    closed = [one for one in requests if one.state == "closed"]
    count, all_of_them = len(closed), len(requests)
    worker = replace(
        WORKER, before=None, stated=None, heard=4 * all_of_them + 2, booked=4 * all_of_them, prompt_stated=None,
        prompt_heard=3 * all_of_them + 4, prompt_booked=3 * all_of_them,
    )  # fmt: skip
    proxy = replace(
        PROXY, requests=count, prompt_tokens=5 * count, cached_tokens=2 * count, completion_tokens=3 * count,
        generated=4 * count, delivered=3 * count, discarded=count,
    )  # fmt: skip
    return [*requests, *(replace(SHARE, request=one.id) for one in requests), worker, proxy]


def work(path: Path, removal: Removal, now: float) -> int:
    with closing(sqlite3.connect(path)) as database:
        return removal.work(database, now)


def all_work(path: Path, removal: Removal, now: float) -> int:
    """Work until it is due no more."""
    count = 0
    while removal.due <= now:
        count += work(path, removal, now)
    return count


def test_bills_and_audit_stay_as_they_were(path: Path) -> None:  # A11
    """Old requests of any key, day and end are removed, in any number of steps."""
    drawn = random.Random(7)
    requests = [
        replace(
            REQUEST, id=f"{number:03}", arrived=FIRST_DAY + DAY * drawn.uniform(0, 9),
            api_key=drawn.choice("ab"), model=drawn.choice("mn"), state=drawn.choice(("closed", "closed", LOST)),
            stage=drawn.choice((None, None, "talker")),
        )
        for number in range(3 * PORTION)
    ]  # fmt: skip
    requests.sort(key=lambda one: one.arrived)
    with closing(UsageFile(path)) as file:
        file.write(balanced(requests))
    before = sums(path)
    assert differences(path) == []
    left, now = {one.id for one in requests}, FIRST_DAY + 9 * DAY
    for days in (8, 5, 5, 1):
        had, left = len(left), {one.id for one in requests if one.arrived >= now - days * DAY}
        assert all_work(path, Removal(days), now) == had - len(left)
        assert set(names(path)) == left and sums(path) == before and differences(path) == []
    with closing(open_to_read(path)) as database:
        (said,) = (one.text for one in audit(database) if "were removed" in one.text)
        shares = database.execute("SELECT count(*) FROM shares").fetchone()[0]
    assert said.startswith(f"{3 * PORTION - len(left)} requests of up to ") and shares == len(left)


def test_what_is_open_new_or_differs_stays(path: Path) -> None:
    old = replace(REQUEST, arrived=FIRST_DAY)
    kept = [
        replace(old, id="open", state=OPEN), replace(old, id="new", arrived=FIRST_DAY + 2 * DAY),
        replace(old, id="unbilled", completion_tokens=2), replace(old, id="prompt", computed_tokens=1),
        replace(old, id="made", generated=5), replace(old, id="no-share"),
    ]  # fmt: skip
    with closing(UsageFile(path)) as file:
        file.write([*kept, replace(old, id="gone"), replace(old, id="unknown", computed_tokens=None)])
        file.write([replace(SHARE, request=name) for name in ("gone", "unknown", "unbilled", "prompt", "made")])
    found = differences(path)
    assert all_work(path, Removal(1), FIRST_DAY + 2.5 * DAY) == 2
    assert names(path) == sorted(one.id for one in kept)
    assert [text for text in differences(path) if text.startswith("request ")] == [
        text for text in found if text.startswith("request ")
    ]


def test_one_step_looks_at_few_rows_and_the_next_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "PORTION", 10)
    with closing(UsageFile(path)) as file:
        # Some that stay are no end of the search.
        file.write(balanced([replace(REQUEST, id=f"{n:02}", state=OPEN if n < 12 else "closed") for n in range(35)]))
    tidier, now = Removal(1), FIRST_DAY + 3 * DAY
    assert [work(path, tidier, now) for _ in range(5)] == [0, 8, 10, 5, 0]
    assert tidier.due == now + PAUSE and work(path, tidier, now + PAUSE - 1) == 0
    assert all_work(path, tidier, now + PAUSE) == 0 and len(names(path)) == 12


def test_a_step_that_fails_removes_nothing_and_is_tried_again(path: Path) -> None:
    with closing(UsageFile(path)) as file:
        file.write(balanced([REQUEST]))
    tidier, now = Removal(1), FIRST_DAY + 3 * DAY
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TRIGGER full BEFORE DELETE ON requests BEGIN SELECT raise(ABORT, 'full'); END")
        before = sums(path)
        with pytest.raises(sqlite3.Error, match="full"):
            tidier.work(database, now)
        assert sums(path) == before and differences(path) == [] and names(path) == ["mine-1"]
        database.execute("DROP TRIGGER full")
    assert work(path, tidier, now + PAUSE) == 1 and sums(path) == before and differences(path) == []


def test_the_log_removes_what_is_old_beside_its_writing(path: Path) -> None:
    with closing(UsageFile(path)) as file:
        file.write(balanced([REQUEST]))
    log = UsageLog(UsageFile(path, FileWriter("y", days=30)))
    for name in ("first", "second"):
        receipt = log.post([replace(REQUEST, id=name, proxy="y", arrived=4e9)], wanted=True)
        assert receipt is not None
        receipt.result(DEADLINE)
    log.close()
    assert names(path) == ["first", "second"] and sums(path)[0].requests == 1


def test_tokens_of_images_are_summed_where_they_are_billed(path: Path) -> None:
    shown = [replace(REQUEST, id=f"mine-{number}", image_tokens=number) for number in (1, 2)]
    unread = replace(
        REQUEST, id="mine-3", image_tokens=4, completion_tokens=0, delivered=0, discarded=4, finish="error"
    )
    with closing(UsageFile(path)) as file:
        file.write(balanced([*shown, unread]))
    assert all_work(path, Removal(1.0), FIRST_DAY + 3 * DAY) == 3
    with closing(open_to_read(path)) as database:
        assert database.execute("SELECT sum(image_tokens) FROM removed_requests").fetchall() == [(3,)]
