# SPDX-License-Identifier: Apache-2.0
"""A request's id in the log, also in records of code that does not know it."""

import logging

import pytest
from scripted_site import ScriptedSite

from pontil.http.server.request_id import CURRENT, WithRequestId


def test_what_is_logged_while_a_request_is_handled_has_its_name(
    bare: ScriptedSite, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:  # F6
    def broken() -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(bare.proxy, "topology", broken)
    monkeypatch.setattr(caplog.handler, "filters", [WithRequestId()])
    for name in ("mine", "yours"):
        assert bare.ask("GET", "/admin/topology", headers={"x-request-id": name}).status == 500
    faults = [record for record in caplog.records if record.name == "pontil.http"]
    assert [vars(record)["request"] for record in faults] == ["mine", "yours"]


def test_a_fuller_name_stays_and_no_name_is_none() -> None:
    record = logging.makeLogRecord({"request": "mine-0f3c"})
    assert WithRequestId().filter(record) and vars(record)["request"] == "mine-0f3c"
    bare = logging.makeLogRecord({})
    assert CURRENT.get() is None and WithRequestId().filter(bare) and "request" not in vars(bare)
