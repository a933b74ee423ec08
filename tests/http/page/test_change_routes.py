# SPDX-License-Identifier: Apache-2.0
"""The routes of the page's buttons."""

from pathlib import Path

import pytest
from scripted_site import site

from pontil.http.access.in_flight_bodies import EMPTY, SLOTS
from pontil.runtime.tokenizer.tokenizer import Tokenizer


@pytest.mark.parametrize(("body", "status"), [({}, 409), ({"role": 3}, 400)])
def test_the_same_change_may_be_asked_for_after_the_proxy_died(
    tmp_path: Path, tokenizer: Tokenizer, body: dict[str, int], status: int
) -> None:
    """A body that is recorded as being read when a proxy dies is refused for minutes."""
    record = tmp_path / "in-flight-bodies"
    with site(tmp_path, tokenizer, in_flight_bodies=str(record)) as made:
        made.pair()
        json = {"content-type": "application/json"}
        assert made.ask("POST", "/admin/workers/decode:0/drain", body, json).status == status
        assert record.read_bytes() == SLOTS * EMPTY
