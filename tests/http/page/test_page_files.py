# SPDX-License-Identifier: Apache-2.0
"""The files of the live page: who gets them, and what a browser is told with them."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_site import ScriptedSite, site

from pontil.http.access import access
from pontil.http.page.page_files import FOLDER, TYPES, read_files
from pontil.runtime.tokenizer.tokenizer import Tokenizer

ORIGIN = "https://app.example"
NAMES = sorted(path.name for path in FOLDER.iterdir() if path.suffix in TYPES)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """A site whose other routes may be read by the pages of any origin."""
    with site(tmp_path_factory.mktemp("shared"), tokenizer, cors_origin=("*",)) as made:
        yield made


@pytest.mark.parametrize("name", ["", *(f"/{name}" for name in NAMES if name != "index.html")])
def test_every_file_comes_with_its_policy(pair: ScriptedSite, name: str) -> None:
    answer = pair.ask("GET", f"/admin/ui{name}")
    assert answer.status == 200 and answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and "form-action 'none'" in policy
    assert answer.headers["content-type"] == TYPES[Path(name or "index.html").suffix]
    known = pair.ask("GET", f"/admin/ui{name}", None, {"if-none-match": answer.headers["etag"]})
    assert (known.status, known.body) == (304, b"") and known.headers["content-security-policy"] == policy
    head = pair.ask("HEAD", f"/admin/ui{name}")
    assert (head.status, head.body, head.headers["etag"]) == (200, b"", answer.headers["etag"])


@pytest.mark.parametrize(
    "name", ["x.js", "index.html", "..%2faccess%2faccess.py", "page_files.py", "%00", "__init__.py"]
)
def test_no_other_file_is_served(pair: ScriptedSite, name: str) -> None:
    assert pair.ask("GET", f"/admin/ui/{name}").status == 404


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere() -> None:
    for name, file in read_files().items():
        text = file.body.decode()
        assert hashlib.sha256(file.body).hexdigest()[:24] in file.tag
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text), (
            name
        )
    page = read_files()["index.html"].body.decode()
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", page)
    # Every file that the page and its modules name is there, and no other.
    named = set(
        re.findall(r'(?:ui/|from "\./)([\w.]+)"', "".join(file.body.decode() for file in read_files().values()))
    )
    assert named | {"index.html"} == set(NAMES)


def test_the_files_are_small_and_state_their_licence() -> None:
    for name, file in read_files().items():
        lines = file.body.decode().splitlines()
        assert any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:2]), name
        assert len(lines) <= 400 and (name.endswith(".css") or max(map(len, lines)) <= 120), name


def test_a_trailing_slash_leads_to_the_page(pair: ScriptedSite) -> None:
    answer = pair.ask("GET", "/admin/ui/")
    assert (answer.status, answer.headers["location"]) == (308, "../ui")


def test_from_afar_the_page_comes_only_where_there_is_an_admin_key(
    pair: ScriptedSite, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "peer_of", lambda request: "192.0.2.7")
    for path in ("/admin/ui", "/admin/ui/main.js"):
        assert pair.ask("GET", path).json["error"]["code"] == "admin_key_required"
    key = "adm-0123456789-adm"
    with site(tmp_path, tokenizer, admin=hashlib.sha256(key.encode()).hexdigest()) as made:
        assert made.ask("GET", "/admin/ui").status == 200, "it has no data, and a browser cannot show a key yet"
        for headers, status in (({}, 401), ({"authorization": "Bearer wrong-0123456789"}, 401)):
            assert made.ask("GET", "/admin/events", None, headers).status == status
            assert made.ask("POST", "/admin/workers/decode:0/drain", {}, headers).status == status
        assert made.ask("HEAD", "/admin/events", None, {"authorization": f"Bearer {key}"}).status == 200


def test_cors_never_opens_the_operators_routes(shared: ScriptedSite) -> None:
    asked = {"origin": ORIGIN, "access-control-request-method": "GET"}
    for path in ("/admin/topology", "/admin/ui", "/admin/ui/main.js", "/admin/events", "/admin/ledger"):
        for method in ("HEAD", "OPTIONS"):
            answer = shared.ask(method, path, None, asked)
            assert not [name for name in answer.headers if "access-control" in name.lower()], (method, path)
    assert shared.ask("GET", "/health", None, asked).headers["access-control-allow-origin"] == "*"
