# SPDX-License-Identifier: Apache-2.0
"""The routes of a room that is left out of an installation."""

from pathlib import Path

import pytest
from scripted_site import site

from pontil.http.routes import left_out
from pontil.runtime.tokenizer.tokenizer import Tokenizer


def test_a_page_that_is_left_out_says_so(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "missing", lambda name: f"{name} is left out")
    with site(tmp_path, tokenizer) as made:
        made.pair()
        page = made.ask("GET", "/admin/ui")
        assert page.status == 404 and page.json["error"]["message"] == "page is left out"
        assert "/admin/events" not in made.ask("GET", "/openapi.json").json["paths"]
        assert made.ask("GET", "/ready").status == 200
