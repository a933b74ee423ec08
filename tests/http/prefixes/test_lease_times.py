# SPDX-License-Identifier: Apache-2.0
"""Leases while the clock of the day jumps, and while the disk of the usage log is full."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from leasing_worker import checked, leasing_worker
from scripted_site import ScriptedSite, site
from scripted_worker import eventually

from pontil.runtime.accounting import usage_log
from pontil.runtime.accounting.audit import audit
from pontil.runtime.accounting.usage_file import UsageFile, open_to_read
from pontil.runtime.accounting.usage_report import usage_sums
from pontil.runtime.tokenizer.tokenizer import Tokenizer

PATH = "/v1/prefixes"
# Of the 40 tokens of its prompt a lease has two blocks of 16, of 100 bytes each.
IDS, SIZE, TTL = [40 + number for number in range(40)], 200, 600


@pytest.fixture
def made(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer, usage_log=str(tmp_path / "usage.db")) as served:
        leasing_worker(served)
        yield served


def keep(made: ScriptedSite) -> dict[str, Any]:
    return checked(made.ask("POST", PATH, {"prompt": IDS, "ttl": TTL}))


def check_books(made: ScriptedSite, folder: Path, byte_seconds: int) -> None:
    """Assert that the usage log comes to have so much of leases, and balances."""
    with closing(open_to_read(folder / "usage.db")) as database:

        def held() -> list[int]:
            return [row.lease_byte_seconds for row in usage_sums(database) if row.leases]

        eventually(lambda: held() == [byte_seconds], "the row of the lease")
        live = made.ask("GET", "/admin/ledger").json
        eventually(lambda: all(one.equal for one in audit(database, live)), "equal books")


def test_a_clock_that_jumps_changes_no_lease(
    made: ScriptedSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end that is told moves with the clock of the day; it is held and billed by one that is never set."""
    kept, real = keep(made), time.time
    one = f"{PATH}/{kept['id']}"
    for jump in (7200.0, -7200.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
        shown = checked(made.ask("GET", one))
        assert (shown["state"], shown["ttl"]) == ("held", TTL) and shown["byte_seconds"]["held"] < SIZE * 60
        assert TTL - 60 <= shown["expires_at"] - (real() + jump) <= TTL
        assert checked(made.ask("PATCH", one, {"ttl": 60}))["ttl"] == TTL, "it lasts longer already"
    amounts = checked(made.ask("DELETE", one))["byte_seconds"]
    assert amounts["granted"] == SIZE * TTL == amounts["held"] + amounts["released"] and amounts["held"] < SIZE * 60
    monkeypatch.setattr(time, "time", real)
    check_books(made, tmp_path, amounts["held"])


def test_a_lease_is_granted_and_billed_once_while_the_disk_is_full(
    made: ScriptedSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, write = [False], UsageFile.write

    def written(file: UsageFile, data: Any) -> None:
        if full[0]:
            raise sqlite3.OperationalError("database or disk is full")
        write(file, data)

    monkeypatch.setattr(usage_log, "RETRY", 0.05)
    monkeypatch.setattr(UsageFile, "write", written)
    full[0] = True
    kept = keep(made)
    amounts = checked(made.ask("DELETE", f"{PATH}/{kept['id']}"))["byte_seconds"]
    with closing(open_to_read(tmp_path / "usage.db")) as database:
        assert not usage_sums(database), "nothing of it is on the disk"
    full[0] = False
    check_books(made, tmp_path, amounts["held"])
