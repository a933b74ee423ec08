# SPDX-License-Identifier: Apache-2.0
"""Pages of the origins that the operator names may use the server from a browser, others may not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_site import ScriptedSite, site

from pontil.http.access.access import CrossOrigin
from pontil.runtime.tokenizer.tokenizer import Tokenizer

APP, OTHER = "https://app.example", "https://other.example"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}
ROUTES = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/models", "/v1/models/x", "/health", "/metrics")
KEY = "k" * 40


def sharing(headers: object) -> dict[str, str]:
    return {name.lower(): value for name, value in dict(headers).items() if "access-control" in name.lower()}  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    import hashlib

    callers = (("alice", hashlib.sha256(KEY.encode()).hexdigest()),)
    with site(tmp_path_factory.mktemp("cors"), tokenizer, cors_origin=(APP,), callers=callers) as made:
        made.worker()
        yield made


@pytest.mark.parametrize("path", ROUTES)
def test_a_browser_may_ask_before_it_sends(served: ScriptedSite, path: str) -> None:
    answer = served.ask("OPTIONS", path, None, {"origin": APP} | PREFLIGHT)
    assert (answer.status, answer.body) == (204, b"") and answer.headers["vary"] == "origin"
    found = sharing(answer.headers)
    assert found["access-control-allow-origin"] == APP
    assert found["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert found["access-control-allow-methods"] == answer.headers["allow"]
    assert {"HEAD", "OPTIONS"} < set(answer.headers["allow"].split(", "))
    assert not sharing(served.ask("OPTIONS", path, None, {"origin": OTHER} | PREFLIGHT).headers)


def test_answers_streams_and_errors_may_be_read(served: ScriptedSite) -> None:
    headers = {"origin": APP, "content-type": "application/json", "authorization": f"Bearer {KEY}"}
    asked = {"prompt": "hi", "max_tokens": 2}
    for body, status in ((asked, 200), (asked | {"stream": True}, 200), ({}, 400)):
        for origin in (APP, OTHER):
            answer = served.ask("POST", "/v1/completions", body, headers | {"origin": origin})
            assert answer.status == status
            found = sharing(answer.headers)
            assert found.get("access-control-allow-origin") == (APP if origin == APP else None)
            assert answer.headers["vary"] == "origin"
            if origin == APP:
                assert "x-pontil-ignored" in found["access-control-expose-headers"]
                assert "x-request-id" in found["access-control-expose-headers"]
                assert "x-pontil-schema" in found["access-control-expose-headers"]
    assert sharing(served.ask("GET", "/v1/models", None, {"origin": APP}).headers), "a 401 too"
    assert not sharing(served.ask("GET", "/health").headers)


@pytest.mark.parametrize("asked", ["x" * 1025, "a\tb", "\u00e9", ""])
def test_names_of_headers_are_repeated_only_where_they_are_names(asked: str) -> None:
    headers = {"origin": APP, "access-control-request-headers": asked}
    assert "access-control-allow-headers" not in CrossOrigin([APP]).headers(headers, "POST")


def test_any_origin(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer, cors_origin=("*",)) as made:
        answer = made.ask("GET", "/health", None, {"origin": OTHER})
        assert sharing(answer.headers)["access-control-allow-origin"] == "*" and answer.headers["vary"] is None


def test_heads_and_options_of_every_route(pair: ScriptedSite) -> None:
    for path in ROUTES:
        answer = pair.ask("OPTIONS", path, b"x" * 1000)
        assert (answer.status, answer.body) == (204, b"") and not sharing(answer.headers)
        if "GET" not in answer.headers["allow"]:
            head = pair.ask("HEAD", path)
            assert (head.status, head.headers["allow"]) == (204, answer.headers["allow"])
    assert pair.ask("OPTIONS", "/nothing").status == 404
