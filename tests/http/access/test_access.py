# SPDX-License-Identifier: Apache-2.0
"""Access on every route of the real app over real sockets (F5)."""

import hashlib
import http.client
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from books import requests_by_key
from sanic import Sanic
from scripted_site import MODEL, HttpAnswer, ScriptedSite, refused, site
from scripted_worker import DEADLINE

from pontil.http.access import access
from pontil.http.access.keyring import MOST_ADDRESSES, MOST_WRONG, WINDOW_SECONDS, FailedKeys, Keyring, place_of
from pontil.http.page import live_events
from pontil.runtime.foundation.loopback import is_loopback
from pontil.runtime.tokenizer.tokenizer import Tokenizer

ALICE, BOB, ADMIN = "sk-alice-0123456789", "bob/0123456789+abc==", "adm-0123456789-adm"
PAGE = ("/admin/ui", "/admin/ui/page.css")
ADMINS = ("/admin/", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")
OPEN = {(method, path) for method in ("GET", "HEAD") for path in ("/", "/health", "/ping", "/ready", *PAGE)}


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def shut(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """A site with keys of alice and bob, and an admin key."""
    callers = (("alice", digest(ALICE)), ("bob", digest(BOB)))
    folder = tmp_path_factory.mktemp("shut")
    with site(folder, tokenizer, callers=callers, admin=digest(ADMIN), usage_log=str(folder / "usage.db")) as made:
        made.pair()
        yield made


@pytest.fixture(scope="module")
def open_to_clients(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """A site with a key of alice, and no admin key."""
    folder = tmp_path_factory.mktemp("open")
    with site(folder, tokenizer, callers=(("alice", digest(ALICE)),)) as made:
        yield made


@pytest.fixture(autouse=True)
def forgiven(shut: ScriptedSite) -> None:
    access_of(shut).wrong.book.clear()


def access_of(made: ScriptedSite) -> access.Access:
    found: access.Access = Sanic.get_app(f"pontil-{made.proxy.incarnation}").ctx.access
    return found


@pytest.fixture
def afar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every client appear to be on another machine."""
    monkeypatch.setattr(access, "peer_of", lambda request: "192.0.2.7")


def routes(made: ScriptedSite) -> list[tuple[str, str]]:
    """Return every method and path of the app."""
    served = Sanic.get_app(f"pontil-{made.proxy.incarnation}").router.routes
    named = {
        "<name:path>": MODEL, "<response_id:str>": "{response_id}", "<file_id:str>": "{file_id}",
        "<batch_id:str>": "{batch_id}", "<prefix_id:str>": "{prefix_id}", "<file:str>": "page.css",
        "<worker:str>": "decode:0", "<action:str>": "drain",
    }  # fmt: skip
    paths = []
    for route in served:
        path = f"/{route.path}"
        for parameter, value in named.items():
            path = path.replace(parameter, value)
        paths.append((path, route.methods))
    every = [(method, path) for path, methods in paths for method in sorted(methods)]
    # Events have no end.
    return [one for one in every if one != ("GET", "/admin/events")]


def test_a_page_whose_key_is_revoked_is_shown_no_more(
    shut: ScriptedSite, afar: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_events, "EVERY", 0.02)
    connection = http.client.HTTPConnection("127.0.0.1", shut.port, timeout=DEADLINE)
    connection.request("GET", "/admin/events", headers=bearer(ADMIN))
    response = connection.getresponse()
    try:
        assert response.status == 200 and response.readline().startswith(b"data: ")
        monkeypatch.setattr(access_of(shut), "keyring", Keyring(access_of(shut).keyring.callers, digest("another")))
        # The stream's end, which never comes to one that is admitted.
        assert response.read().endswith(b"\n")
    finally:
        connection.close()


def test_every_route_but_probes_and_the_page_needs_a_key(shut: ScriptedSite, afar: None) -> None:  # F5
    swept = routes(shut)
    assert len(swept) > 15 and set(swept) >= OPEN
    for method, path in swept:
        answer = shut.ask(method, path, {} if method == "POST" else None)
        if (method, path) in OPEN or method == "OPTIONS":
            assert answer.status == (204 if method == "OPTIONS" else 200), path
            continue
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer"), (method, path)
        if method != "HEAD":
            said = refused(answer, 401, "invalid_api_key")
            assert "Authorization: Bearer KEY" in said and said.startswith(
                "the admin" if path.startswith(ADMINS) else "an"
            )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nothing"),
        ("GET", "/v1/completions"),
        ("POST", "/health"),
        ("OPTIONS", "/nothing"),
        ("GET", "/health/x"),
        ("GET", "/admin/nothing"),
        ("GET", "/%68ealth/../v1/models"),
        ("GET", "//v1/models"),
        ("POST", "/v1/embeddings"),
    ],
)
def test_what_is_no_route_needs_one_too(shut: ScriptedSite, method: str, path: str) -> None:  # F5
    refused(shut.ask(method, path), 401, "invalid_api_key")
    assert shut.ask(method, path, headers=bearer(ALICE)).status in (404, 405)


@pytest.mark.parametrize("key", [ALICE, BOB, ADMIN])
def test_a_right_key_opens_everything_but_admin(shut: ScriptedSite, afar: None, key: str) -> None:  # F5
    for method, path in routes(shut):
        answer = shut.ask(method, path, {} if method == "POST" else None, bearer(key))
        if path.startswith(ADMINS) and path not in PAGE and key != ADMIN and method != "OPTIONS":
            assert answer.status == 403, path
        else:
            expected = {"POST": (400,), "GET": (200,), "HEAD": (200, 204), "OPTIONS": (204,)}
            if path.startswith("/admin/requests/"):
                expected |= {"GET": (404,), "HEAD": (404, 204)}
            if path.rpartition("{")[2].startswith(("response_id}", "file_id}", "batch_id}", "prefix_id}")):
                # None of that name is kept.
                expected |= {"POST": (404,), "GET": (404,), "DELETE": (404,), "HEAD": (404, 204), "PATCH": (400, 415)}
            if path in ("/v1/embeddings", "/api/embed", "/api/embeddings") or path.endswith(("/rerank", "/score")):
                # This site has no model that embeds or scores texts.
                expected |= {"POST": (404,)}
            if path.startswith("/admin/workers/"):
                # Its workers are no supervisor's.
                expected |= {"POST": (409,)}
            if path == "/admin/record":
                # This site has no key to sign receipts with.
                expected |= {"GET": (400,)}
            if path in ("/v1/audio/transcriptions", "/v1/files"):
                # Their bodies are forms.
                expected |= {"POST": (415,)}
            assert answer.status in expected[method], path


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (ALICE, "not of the form Bearer KEY"),
        ("Bearer", "not of the form"),
        ("Bearer ", "not of the form"),
        (f"Basic {ALICE}", "not of the form"),
        (f"Bearer {ALICE} {ALICE}", "not of the form"),
        (f"Bearer {ALICE}x", "not one of this server's"),
        (f"Bearer {ALICE[:-1]}", "not one of this server's"),
        (f"Bearer {ALICE.upper()}", "not one of this server's"),
        (f"Bearer {digest(ALICE)}", "not one of this server's"),
        ("Bearer schlüssel", "not one of this server's"),
        ("", "not of the form"),
    ],
)
def test_what_is_wrong_with_a_header_is_one_sentence(shut: ScriptedSite, header: str, said: str) -> None:  # F5
    answer = shut.ask("GET", "/v1/models", headers={"authorization": header})
    message = refused(answer, 401, "invalid_api_key")
    assert said in message and ALICE not in message and "\n" not in message


def test_two_headers_are_none(shut: ScriptedSite) -> None:
    connection = shut.connect()
    connection.putrequest("GET", "/v1/models")
    for key in (ALICE, BOB):
        connection.putheader("authorization", f"Bearer {key}")
    connection.endheaders()
    assert "one such header" in refused(HttpAnswer(connection.getresponse()), 401, "invalid_api_key")
    connection.close()


def test_the_scheme_is_a_word_in_any_letters(shut: ScriptedSite) -> None:
    for header in (f"bearer {ALICE}", f"BEARER  {BOB}", f" Bearer {ALICE} "):
        assert shut.ask("GET", "/v1/models", headers={"authorization": header}).status == 200, header


@pytest.mark.parametrize(
    ("headers", "here"),
    [
        ({}, True),
        ({"host": "localhost"}, True),
        ({"host": "127.0.0.1"}, True),
        ({"host": "[::1]:8000"}, True),
        ({"x-forwarded-for": "127.0.0.1"}, False),
        ({"forwarded": "for=127.0.0.1"}, False),
        ({"via": "1.1 front"}, False),
        ({"host": "evil.example:8000"}, False),
        ({"host": ""}, False),
    ],
)
def test_the_servers_own_machine_may_look_at_admin_where_there_is_no_admin_key(
    open_to_clients: ScriptedSite, headers: dict[str, str], here: bool
) -> None:  # F5
    for path in ("/admin/topology", "/admin/ledger", "/admin/requests"):
        assert open_to_clients.ask("GET", path, headers=headers).status == (200 if here else 401)
        assert open_to_clients.ask("GET", path, headers=headers | bearer(ALICE)).status == (200 if here else 403)


@pytest.mark.parametrize("headers", [{}, {"host": "localhost"}, {"host": "127.0.0.1"}, {"via": "1.1 front"}], ids=str)
def test_an_admin_key_is_asked_for_on_the_own_machine_too(shut: ScriptedSite, headers: dict[str, str]) -> None:  # F5
    """A proxy on this machine that passes requests on with a Host of its own cannot be told from the machine itself."""
    for path in ("/admin/topology", "/admin/ledger", "/admin/requests"):
        assert "the admin key is needed" in refused(shut.ask("GET", path, headers=headers), 401, "invalid_api_key")
        answer = shut.ask("GET", path, headers=headers | bearer(ALICE))
        assert "needs the admin key" in refused(answer, 403, "admin_key_required")
        assert shut.ask("GET", path, headers=headers | bearer(ADMIN)).status == 200
    answer = shut.ask("POST", "/admin/workers/decode:0/restart", {}, headers)
    refused(answer, 401, "invalid_api_key")


def test_a_key_may_come_in_the_header_of_anthropics_clients(shut: ScriptedSite) -> None:  # F5
    def status(**headers: str) -> int:
        return shut.ask(
            "GET", "/v1/models", headers={name.replace("_", "-"): key for name, key in headers.items()}
        ).status

    assert status(x_api_key=ALICE) == 200 and status(x_api_key=f"{ALICE}x") == 401 and status(x_api_key="") == 401
    assert status(x_api_key=ALICE, authorization=f"Bearer {ALICE}") == 401, "one of both"


def test_admin_from_afar_says_what_is_missing(shut: ScriptedSite, bare: ScriptedSite, afar: None) -> None:  # F5
    headers = bearer(ALICE) | {"x-forwarded-for": "127.0.0.1"}
    assert "needs the admin key" in refused(
        shut.ask("GET", "/admin/ledger", headers=headers), 403, "admin_key_required"
    )
    assert "start the server with an admin key" in refused(bare.ask("GET", "/admin/ledger"), 403, "admin_key_required")
    assert bare.ask("GET", "/metrics").status == 200, "without keys the rest is open"


def test_a_client_called_admin_is_a_client(tmp_path: Path, tokenizer: Tokenizer, afar: None) -> None:
    with site(tmp_path, tokenizer, callers=(("admin", digest(ALICE)),)) as made:
        assert made.ask("GET", "/admin/ledger", headers=bearer(ALICE)).status == 403


def test_a_body_is_not_read_for_nobody(shut: ScriptedSite, afar: None) -> None:
    """Every path and method is refused though the body is never sent, also those that are no route."""
    swept = [one for one in routes(shut) if one not in OPEN and one[0] != "OPTIONS"]
    for method, path in [*swept, ("POST", "/nothing"), ("PUT", "/v1/completions")]:
        with socket.create_connection(("127.0.0.1", shut.port), timeout=DEADLINE) as connection:
            connection.sendall(f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n{{".encode())
            assert connection.recv(1024).startswith(b"HTTP/1.1 401 "), (method, path)


def test_a_connection_serves_whoever_shows_a_key(shut: ScriptedSite) -> None:
    """Every request on a connection is checked."""
    connection: http.client.HTTPConnection = shut.connect()
    for headers, status in ((bearer(ALICE), 200), ({}, 401), (bearer("x" * 20), 401), (bearer(BOB), 200)):
        connection.request("GET", "/v1/models", headers=headers)
        assert HttpAnswer(connection.getresponse()).status == status
    connection.close()


def test_many_wrong_keys_are_told_to_wait_and_lock_nobody_out(
    shut: ScriptedSite, caplog: pytest.LogCaptureFixture
) -> None:  # F5
    statuses = []
    with caplog.at_level(logging.DEBUG):
        for number in range(MOST_WRONG + 5):
            answer = shut.ask("GET", "/v1/models", headers=bearer(f"guess-{number:016}"))
            statuses.append(answer.status)
    assert statuses == [401] * MOST_WRONG + [429] * 5
    assert 1 <= int(answer.headers["retry-after"]) <= WINDOW_SECONDS
    assert "too many wrong API keys" in refused(answer, 429, "rate_limit_exceeded")
    assert shut.ask("GET", "/v1/models", headers=bearer(ALICE)).status == 200
    assert shut.ask("GET", "/v1/models").status == 401, "no key is no guess"
    (said,) = [record.getMessage() for record in caplog.records if "wrong API keys" in record.getMessage()]
    assert "127.0.0.1" in said and not [record for record in caplog.records if "guess-" in record.getMessage()]


def test_the_book_of_wrong_keys_is_bounded_and_forgets() -> None:
    wrong = FailedKeys()
    for number in range(3 * MOST_ADDRESSES):
        assert wrong.note(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.0) is None
        assert len(wrong.book) <= MOST_ADDRESSES
    waits = [wrong.note("192.0.2.1", 10.0 + number) for number in range(MOST_WRONG + 1)]
    assert waits == [None] * MOST_WRONG + [WINDOW_SECONDS - MOST_WRONG]
    assert wrong.note("192.0.2.1", 10.0 + WINDOW_SECONDS) is None, "a window later all begins anew"
    assert wrong.note("192.0.2.1", 1e9) is None


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_network_of_ipv6_counts_as_one(address: str, place: str) -> None:
    assert place_of(address) == place


@pytest.mark.parametrize(
    ("address", "here"),
    [("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False), ("", False)],
)
def test_what_is_this_machine(address: str, here: bool) -> None:
    assert is_loopback(address) == here


def test_every_key_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:  # F5
    compared: list[str] = []

    def compare(one: str, other: str) -> bool:
        compared.append(other)
        return one == other

    monkeypatch.setattr("hmac.compare_digest", compare)
    ring = Keyring((("a", digest(ALICE)), ("b", digest(BOB))), digest(ADMIN))
    for key in (ALICE, BOB, ADMIN, "nobody's"):
        compared.clear()
        ring.caller(key.encode())
        assert compared == [digest(ALICE), digest(BOB), digest(ADMIN)]
    assert ALICE not in str(ring) and digest(ALICE) not in str(ring)
    assert [ring.knows(name) for name in ("a", "b", "admin", "c", "-")] == [True, True, True, False, False]
    assert not Keyring(ring.callers).knows("admin") and Keyring().knows("c"), "without keys all are admitted"


def test_the_row_and_the_line_say_whose_key_it_was(shut: ScriptedSite, caplog: pytest.LogCaptureFixture) -> None:
    before = requests_by_key(Path(str(shut.proxy.config.usage_log)))
    with caplog.at_level(logging.DEBUG):
        body = json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 2}).encode()
        for key, name in ((ALICE, "alice"), (BOB, "bob"), (ADMIN, "admin")):
            assert shut.ask("POST", "/v1/completions", body, bearer(key) | {"x-request-id": name}).status == 200
    lines = {record.getMessage().split()[2] for record in caplog.records if record.name == "pontil.requests"}
    assert lines == {"key=alice", "key=bob", "key=admin"}
    assert requests_by_key(Path(str(shut.proxy.config.usage_log))) - before == {"alice": 1, "bob": 1, "admin": 1}
    assert not [one for one in caplog.records if ALICE in one.getMessage() or digest(ALICE) in one.getMessage()]


def test_the_document_says_who_needs_which_key(shut: ScriptedSite, bare: ScriptedSite) -> None:
    guarded, free = (made.ask("GET", "/openapi.json", headers=bearer(ALICE)).json for made in (shut, bare))
    assert set(guarded["components"]["securitySchemes"]) == {"key", "admin"}
    for path, operations in guarded["paths"].items():
        for method, operation in operations.items():
            statuses, needs = set(operation["responses"]), operation["security"]
            if (method.upper(), path) in OPEN or path.startswith("/admin/ui"):
                assert needs == [] and "401" not in statuses
            elif path.startswith(ADMINS):
                assert needs == [{"admin": []}] and statuses >= {"401", "403", "429"}
                assert free["paths"][path][method]["security"] == [{}, {"admin": []}]
            else:
                assert needs == [{"key": []}, {"admin": []}] and statuses >= {"401", "429"}
            if not path.startswith(ADMINS):
                unguarded = free["paths"][path][method]
                assert unguarded["security"] == [] and "401" not in unguarded["responses"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client(shut: ScriptedSite, stream: bool) -> None:  # F5
    def client(key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{shut.port}/v1", api_key=key, max_retries=0)

    def ask(key: str) -> Any:
        return client(key).chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=stream
        )

    assert ask(ALICE)
    with pytest.raises(openai.AuthenticationError) as caught:
        ask("sk-nobodys-0123456789")
    assert caught.value.status_code == 401 and caught.value.code == "invalid_api_key"
    for _ in range(MOST_WRONG - 1):
        shut.ask("GET", "/v1/models", headers=bearer("sk-nobodys-0123456789"))
    with pytest.raises(openai.RateLimitError):
        ask("sk-nobodys-0123456789")
