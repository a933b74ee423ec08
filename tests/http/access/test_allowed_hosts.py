# SPDX-License-Identifier: Apache-2.0
"""Host names of a server without keys: a page that arrives by DNS rebinding must not use it."""

import hashlib
import socket
from pathlib import Path

import pytest
from scripted_site import ScriptedSite, site
from scripted_worker import DEADLINE

from pontil.http.access.access import AllowedHosts
from pontil.runtime.tokenizer.tokenizer import Tokenizer

KEY = "sk-alice-0123456789"
OURS = ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.9.9.9:1", "[::1]:8000", "[::1]", "a.localhost"]
FOREIGN = ["evil.example", "evil.example:8000", "localhost.evil.example", "notlocalhost", "192.0.2.7:8000", "", "a:b:c"]


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/version", "/openapi.json", "/nothing"])
def test_another_name_is_refused(pair: ScriptedSite, path: str, host: str) -> None:
    answer = pair.ask("GET", path, headers={"host": host})
    error = answer.json["error"]
    assert (answer.status, error["code"]) == (403, "host_not_allowed")
    assert "--allowed-hosts" in error["message"] and "\n" not in error["message"] and len(error["message"]) < 400


@pytest.mark.parametrize("host", OURS)
def test_its_own_names_are_not(pair: ScriptedSite, host: str) -> None:
    assert pair.ask("GET", "/v1/models", headers={"host": host}).status == 200
    headers = {"host": host, "content-type": "application/json"}
    assert pair.ask("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 2}, headers).status == 200


def test_a_page_that_was_led_here_by_a_false_name_generates_nothing(pair: ScriptedSite) -> None:
    """The request is same-origin to its browser and needs no preflight."""
    headers = {"host": "evil.example:8000", "origin": "http://evil.example:8000", "content-type": "application/json"}
    prompt = pair.tokenizer.encode("of a page", False)
    assert pair.ask("POST", "/v1/completions", {"prompt": prompt}, headers).status == 403
    assert pair.ask("POST", "/v1/completions", {"prompt": [7], "max_tokens": 2}).status == 200
    submits = pair.workers[0].submits
    while (submitted := submits.get(timeout=DEADLINE).prompt) != [7]:
        assert submitted != prompt


def test_who_watches_over_the_server_is_let_in_by_any_name(pair: ScriptedSite) -> None:
    for path in ("/health", "/ready"):
        assert pair.ask("GET", path, headers={"host": "10.0.0.1:8000"}).status == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 200),
        (b"host: localhost\r\nhost: evil.example\r\n", 400),
        (b"host: evil.example\r\nhost: localhost\r\n", 400),
    ],
)
def test_no_name_is_no_page_and_two_are_no_request(pair: ScriptedSite, head: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", pair.port), DEADLINE) as connection:
        connection.sendall(b"GET /version HTTP/1.1\r\n" + head + b"\r\n")
        assert connection.recv(1024).startswith(b"HTTP/1.1 %d " % status)


def test_names_may_be_given(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer, allowed_hosts=("llm.example", "10.0.0.7")) as made:
        for host, status in (("LLM.example:80", 200), ("10.0.0.7", 200), ("localhost", 200), ("evil.example", 403)):
            assert made.ask("GET", "/version", headers={"host": host}).status == status


def test_with_keys_a_name_is_no_matter(tmp_path: Path, tokenizer: Tokenizer) -> None:
    callers = (("alice", hashlib.sha256(KEY.encode()).hexdigest()),)
    with site(tmp_path, tokenizer, callers=callers) as made:
        headers = {"host": "llm.example", "authorization": f"Bearer {KEY}"}
        assert made.ask("GET", "/version", headers=headers).status == 200


@pytest.mark.parametrize(
    ("bound", "given", "host", "admitted"),
    [
        ("127.0.0.1", (), "evil.example", False),
        ("localhost", (), "evil.example", False),
        ("::1", (), "[::1]:80", True),
        ("0.0.0.0", (), "evil.example", True),
        ("0.0.0.0", ("llm.example",), "evil.example", False),
        ("10.0.0.7", ("llm.example",), "10.0.0.7:8000", True),
        ("127.0.0.1", ("*",), "evil.example", True),
    ],
)
def test_a_network_that_was_opened_is_open(bound: str, given: tuple[str, ...], host: str, admitted: bool) -> None:
    assert AllowedHosts(bound, given).admit([host]) == admitted
