# SPDX-License-Identifier: Apache-2.0
"""The audit confirms balanced logs, and finds every single number that is changed."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from usage_rows import BALANCED, PROXY, REQUEST, SHARE, WORKER

from pontil.runtime.accounting.audit import AuditFinding, audit
from pontil.runtime.accounting.usage_file import UsageFile, open_to_read
from pontil.runtime.accounting.usage_report import RequestBill, UsageSum, bills_of, usage_sums
from pontil.runtime.accounting.usage_tables import CLOSED, LOST, UsageRow

DAY = 86400.0
NO_PROMPTS: dict[str, Any] = dict.fromkeys(
    (f"prompt_{name}" for name in ("stated", "heard_then", "missing", "heard", "booked", "late")), 0
)


def audited(folder: Path, *rows: UsageRow, live: dict[str, Any] | None = None) -> list[AuditFinding]:
    file = UsageFile(folder / "usage.db")
    file.write(rows)
    file.close()
    with closing(open_to_read(folder / "usage.db")) as database:
        return audit(database, live)


def differences(findings: list[AuditFinding]) -> list[str]:
    return [one.text for one in findings if not one.equal]


def test_books_that_balance(tmp_path: Path) -> None:
    findings = audited(tmp_path, *BALANCED)
    assert differences(findings) == [] and len(findings) == 3
    assert "6 stated last, 4 in the rows, 2 late" in findings[-1].text


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (replace(REQUEST, completion_tokens=4), "3 delivered and 4 billed"),
        (replace(REQUEST, generated=9), "state 9"),
        (replace(REQUEST, computed_tokens=4), "of 5 prompt tokens 2 were cached and 4 computed"),  # A11
        (replace(SHARE, computed=4), "booked 3 computed prompt tokens but the rows have 4"),
        (replace(WORKER, prompt_stated=8), "stated 8 computed prompt tokens but 7"),
        (replace(WORKER, prompt_heard=9), "9 computed prompt tokens were heard but 3 booked and 4 late"),
        (replace(REQUEST, discarded=0), "3 are delivered or discarded"),
        (replace(SHARE, generated=3), "sent 3"),
        (replace(WORKER, stated=7), "stated 7 but 6"),
        (replace(WORKER, heard=7), "7 were heard"),
        (replace(PROXY, requests=2), "requests 2 but 1"),
        (replace(PROXY, cached_tokens=0), "cached_tokens 0 but 2"),
    ],
)
def test_every_wrong_number_is_found(tmp_path: Path, spoilt: UsageRow, said: str) -> None:
    rows = [spoilt if type(row) is type(spoilt) else row for row in BALANCED]
    assert any(said in text for text in differences(audited(tmp_path, *rows)))


def test_a_row_that_is_missing_is_found(tmp_path: Path) -> None:
    wrong = differences(audited(tmp_path, WORKER, PROXY))
    assert any("requests 1 but 0" in text for text in wrong)
    assert any("booked 4 but the rows have 0" in text for text in wrong)


def test_a_proxy_that_closed_has_every_token_in_its_rows(tmp_path: Path) -> None:
    file = UsageFile(tmp_path / "usage.db")
    file.write([REQUEST, replace(SHARE, generated=4), replace(WORKER, booked=5, heard=7, stated=7, heard_then=7)])
    file.write([replace(PROXY, state=CLOSED)])
    file.close()
    with closing(open_to_read(tmp_path / "usage.db")) as database:
        assert any("booked 5 but the rows have 4" in text for text in differences(audit(database)))


@pytest.mark.parametrize("pace", [1, -1], ids=["a clock that goes on", "a clock that is set back"])
def test_what_was_lost_with_killed_proxies_is_counted_by_a_later_one(tmp_path: Path, pace: int) -> None:
    """One of the proxies was killed before the worker stated anything to it: it is taken together with the one
    before."""
    audited(tmp_path, *BALANCED)
    between = replace(
        WORKER, proxy="y", before=None, stated=None, heard_then=0, heard=1, booked=0, late=1, **NO_PROMPTS
    )
    audited(tmp_path, between, idle_proxy("y", 9 * pace))
    later = replace(WORKER, proxy="z", before=21, stated=0, heard_then=0, heard=0, booked=0, late=0, **NO_PROMPTS)
    findings = audited(tmp_path, later, idle_proxy("z", 10 * pace))
    assert differences(findings) == [] and LOST in findings[1].text
    assert any("4 lost with this proxy and 1 that followed it" in one.text for one in findings)
    assert differences(audited(tmp_path, replace(later, before=12)))


def idle_proxy(name: str, after: float) -> UsageRow:
    return replace(
        PROXY, incarnation=name, started=PROXY.started + after, requests=0, prompt_tokens=0, cached_tokens=0,
        completion_tokens=0, generated=0, delivered=0, discarded=0,
    )  # fmt: skip


def test_a_running_ledger_is_compared_too(tmp_path: Path) -> None:
    live = {"incarnation": "x", "requests": 1, "prompt_tokens": 5, "cached_tokens": 2, "completion_tokens": 3}
    live |= {"generated": 4, "delivered": 3, "discarded": 1}
    assert differences(audited(tmp_path, *BALANCED, live=live)) == []
    assert differences(audited(tmp_path, live=live | {"delivered": 4}))
    assert "does not write to this file" in differences(audited(tmp_path, live=live | {"incarnation": "z"}))[0]


def test_sums_are_by_key_model_and_day_and_bill_nothing_undelivered(tmp_path: Path) -> None:
    rows = [
        REQUEST,
        replace(REQUEST, id="2", arrived=REQUEST.arrived + DAY - 1),
        replace(REQUEST, id="3", arrived=REQUEST.arrived + DAY),
        replace(REQUEST, id="4", delivered=0, completion_tokens=0, finish="error"),
        replace(REQUEST, id="5", model="other", state=LOST),
    ]
    audited(tmp_path, *rows)
    with closing(open_to_read(tmp_path / "usage.db")) as database:
        assert usage_sums(database) == [
            UsageSum("-", "other", "2024-10-04", 1, 1, 0, 5, 2, 3),
            UsageSum("-", "tiny", "2024-10-04", 3, 0, 0, 10, 4, 6),
            UsageSum("-", "tiny", "2024-10-05", 1, 0, 0, 5, 2, 3),
        ]


def test_bills_are_found_by_the_beginning_of_their_names(tmp_path: Path) -> None:
    rows = [
        replace(REQUEST, name="load-1"),
        replace(REQUEST, id="2", name="load-2", state=LOST),
        replace(REQUEST, id="3", name="other load-3"),
        replace(REQUEST, id="4", name="load-1", stage="speaker"),
    ]
    audited(tmp_path, *rows)
    with closing(open_to_read(tmp_path / "usage.db")) as database:
        assert sorted(bills_of(database, "load-"), key=lambda one: one.name) == [
            RequestBill("load-1", CLOSED, 5, 3),
            RequestBill("load-2", LOST, 5, 3),
        ]
