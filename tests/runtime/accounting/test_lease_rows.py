# SPDX-License-Identifier: Apache-2.0
"""Rows of leases: older files get them, the audit finds every wrong number, and removal keeps their sums."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from usage_rows import BALANCED, DAY, PROXY

from pontil.runtime.accounting.audit import audit
from pontil.runtime.accounting.removal import Removal
from pontil.runtime.accounting.usage_file import UsageFile, open_to_read
from pontil.runtime.accounting.usage_report import UsageSum, usage_sums
from pontil.runtime.accounting.usage_tables import CLOSED, LOST, OPEN, LeaseRow, LostLeases, ProxyRow, UsageRow

LEASE = LeaseRow(
    "prefix-1", "x", "ada", "tiny", "mixed:0", CLOSED, "refunded", "its worker drains", 32, 100, 60, 6000, 2000, 0,
    4000, DAY,
)  # fmt: skip
LEASED_PROXY = replace(PROXY, leases=1, lease_granted=6000, lease_held=2000, lease_refunded=4000)


def written(path: Path, *rows: UsageRow | LostLeases) -> Path:
    file = UsageFile(path)
    file.write(rows)
    file.close()
    return path


def differences(path: Path) -> list[str]:
    with closing(open_to_read(path)) as database:
        return [one.text for one in audit(database) if not one.equal]


def with_lease(*changed: LeaseRow | ProxyRow) -> list[UsageRow]:
    rows: list[UsageRow] = [row for row in BALANCED if not isinstance(row, ProxyRow)]
    kinds = {type(row) for row in changed}
    return [*rows, *(row for row in (LEASE, LEASED_PROXY) if type(row) not in kinds), *changed]


def test_a_lease_that_is_conserved_balances(tmp_path: Path) -> None:
    path = written(tmp_path / "usage.db", *with_lease())
    assert differences(path) == []
    with closing(open_to_read(path)) as database:
        says = [one.text for one in audit(database) if "byte-seconds" in one.text]
    assert says == ["proxy x (open): 1 leases are over, 2000 byte-seconds held and 4000 refunded"]


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (replace(LEASE, held=2001), "lease prefix-1: of 6000 byte-seconds 2001 were held"),
        (replace(LEASE, refunded=0), "0 refunded"),
        (replace(LEASE, state=OPEN, held=6001), "6001 were held"),
        (replace(LEASE, granted=5000, held=1000), "lease_granted 6000 but 5000 in the rows"),
        (replace(LEASED_PROXY, lease_held=0), "lease_held 0 but 2000 in the rows"),
        (replace(LEASED_PROXY, leases=2), "leases 2 but 1 in the rows"),
    ],
)
def test_every_wrong_number_of_a_lease_is_found(tmp_path: Path, spoilt: LeaseRow | ProxyRow, said: str) -> None:
    found = differences(written(tmp_path / "usage.db", *with_lease(spoilt)))
    assert any(said in text for text in found), found


def test_a_lease_that_is_over_changes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    written(path, replace(LEASE, state=OPEN, outcome="held", held=0, refunded=0))
    written(path, LEASE)
    written(path, replace(LEASE, held=6000, refunded=0))
    with closing(open_to_read(path)) as database:
        assert database.execute("SELECT held, refunded FROM leases").fetchall() == [(2000, 4000)]


def test_what_two_proxies_close_counts_once(tmp_path: Path) -> None:
    """A worker that has lost a proxy has another one bill its leases, while the first one goes on to."""
    other = replace(LEASED_PROXY, incarnation="y", started=PROXY.started + 1, lease_held=5000, lease_refunded=1000)
    late = replace(LEASE, proxy="y", held=5000, refunded=1000)
    path = written(tmp_path / "usage.db", *with_lease(), late, other)
    assert not any("lease " in text or "leases" in text for text in differences(path))
    with closing(open_to_read(path)) as database:
        assert sum(one.lease_byte_seconds for one in usage_sums(database)) == 2000
    wrong = replace(other, lease_held=4999)
    assert any("lease_held 4999 but 5000" in text for text in differences(written(path, wrong)))


def test_what_nobody_has_any_more_is_refunded(tmp_path: Path) -> None:
    opened = replace(LEASE, state=OPEN, outcome="held", reason=None, held=1500, refunded=0)
    living = replace(PROXY, incarnation="y", state=OPEN)
    rows: list[UsageRow] = [living, opened, replace(opened, id="kept"), replace(opened, id="there", proxy="y")]
    path = written(tmp_path / "usage.db", *rows, LostLeases('["kept"]'))
    with closing(open_to_read(path)) as database:
        told = database.execute("SELECT id, state, held, refunded FROM leases ORDER BY id").fetchall()
    assert told == [("kept", OPEN, 1500, 0), ("prefix-1", LOST, 1500, 4500), ("there", OPEN, 1500, 0)]
    assert not any("lease " in text for text in differences(path))


def test_a_file_of_the_version_before_gets_the_leases(tmp_path: Path) -> None:
    path = written(tmp_path / "usage.db", *BALANCED)
    with closing(sqlite3.connect(path)) as database, database:
        for table in ("leases", "removed_leases"):
            database.execute(f"DROP TABLE {table}")
        for name in ("leases", "lease_granted", "lease_held", "lease_released", "lease_refunded"):
            database.execute(f"ALTER TABLE proxies DROP COLUMN {name}")
        database.execute("PRAGMA user_version = 6")
    written(path)
    assert differences(path) == []
    written(path, *with_lease())
    assert differences(path) == []


def test_sums_of_leases_stay_as_they_were_when_rows_are_removed(tmp_path: Path) -> None:
    """They are larger than SQLite's integers."""
    large = [replace(LEASE, id=f"lease-{number}", granted=1 << 62, held=1 << 62, refunded=0) for number in range(3)]
    granted = replace(PROXY, leases=3, lease_granted=(1 << 63) - 1, lease_held=(1 << 63) - 1)
    path = written(tmp_path / "usage.db", *with_lease(*large[:1], granted), *large[1:])
    expected = UsageSum("ada", "tiny", "2024-10-04", 0, 0, 0, 0, 0, 0, 3, 3 << 62, 0)
    with closing(open_to_read(path)) as database:
        assert expected in usage_sums(database)
    assert differences(path) == []
    balanced = [replace(LEASE, id="small"), replace(LEASE, id="other", state=OPEN, held=0, refunded=0)]
    path = written(tmp_path / "removed.db", *with_lease(*balanced[:1]), *balanced[1:])
    with closing(open_to_read(path)) as database:
        before = usage_sums(database)
    with closing(sqlite3.connect(path)) as database:
        Removal(1.0).work(database, DAY + 10 * 86400.0)
        assert database.execute("SELECT id FROM leases").fetchall() == [("other",)], "an open one stays"
    with closing(open_to_read(path)) as database:
        assert usage_sums(database) == before
    assert differences(path) == []
