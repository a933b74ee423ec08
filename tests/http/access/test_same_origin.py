# SPDX-License-Identifier: Apache-2.0
"""Pages of other sites in an operator's browser cannot read or change anything, though no key is needed there."""

import pytest
from scripted_site import ScriptedSite

from pontil.http.access.access import foreign_page
from pontil.runtime.tokenizer.tokenizer import Tokenizer

JSON = {"content-type": "application/json"}
DRAIN = "/admin/workers/decode:0/drain"
FOREIGN: list[dict[str, str]] = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"origin": "http://[::1"},
    {"origin": "file://"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_foreign_page_changes_nothing(pair: ScriptedSite, headers: dict[str, str]) -> None:
    answer = pair.ask("POST", DRAIN, {}, JSON | headers)
    assert (answer.status, answer.json["error"]["code"]) == (403, "foreign_origin")
    assert "/admin/ui" in answer.json["error"]["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_form_can_send_changes_nothing(pair: ScriptedSite, kind: str) -> None:
    """An old browser says nothing of where a form comes from, but cannot send JSON without asking first."""
    answer = pair.ask("POST", DRAIN, {}, {"content-type": kind} if kind else {})
    assert answer.status == 403 and "application/json" in answer.json["error"]["message"]


def test_the_page_itself_may_ask(pair: ScriptedSite) -> None:
    own = {"origin": f"http://127.0.0.1:{pair.port}", "sec-fetch-site": "same-origin"}
    # It has come to the worker's name: no supervisor is there to carry it out.
    assert pair.ask("POST", DRAIN, {}, JSON | own).status == 409
    assert pair.ask("GET", "/admin/topology", None, own).status == 200


def test_a_link_may_be_followed_and_nothing_else_read(pair: ScriptedSite) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    for followed in (link, link | {"sec-fetch-dest": "document"}):
        assert pair.ask("GET", "/admin/topology", None, followed).status == 200
    for path in ("/admin/topology", "/admin/events", "/admin/ledger"):
        assert pair.ask("GET", path, None, link | {"sec-fetch-mode": "cors"}).status == 403
        assert pair.ask("GET", path, None, {"origin": "https://evil.example"}).status == 403
        for frame in ("iframe", "frame", "embed", "object"):
            assert pair.ask("GET", path, None, link | {"sec-fetch-dest": frame}).status == 403


def test_a_rebound_name_is_not_this_machine(pair: ScriptedSite) -> None:
    """A page at evil.example whose name now means 127.0.0.1 is of the same origin, by another Host."""
    evil = {"host": f"evil.example:{pair.port}", "origin": f"http://evil.example:{pair.port}"}
    for method, path in (("GET", "/admin/events"), ("GET", "/admin/ui"), ("GET", "/admin/ui/main.js"), ("POST", DRAIN)):
        answer = pair.ask(method, path, {} if method == "POST" else None, evil | JSON)
        assert (answer.status, answer.json["error"]["code"]) == (403, "admin_key_required"), path


def test_same_origin_is_told_by_host_and_port() -> None:
    def verdict(origin: str, host: str) -> bool:
        return foreign_page("POST", JSON | {"origin": origin, "host": host}) is None

    assert verdict("http://localhost:8000", "localhost:8000") and verdict("https://Pontil.example", "pontil.example")
    assert not verdict("http://localhost:8001", "localhost:8000") and not verdict("http://localhost", "localhost:8000")
    assert not verdict("http://localhost:8000.evil.example", "localhost:8000") and not verdict("http://x", "")


def test_options_are_answered_without_leave(pair: ScriptedSite, tokenizer: Tokenizer) -> None:
    asks = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    answer = pair.ask("OPTIONS", DRAIN, None, asks)
    assert answer.status == 204 and not [name for name in answer.headers if "access-control" in name.lower()]
