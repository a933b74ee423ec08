# SPDX-License-Identifier: Apache-2.0
"""A key's allowance is known wherever its request is."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from sanic import Sanic
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site
from scripted_worker import DEADLINE

from pontil.http.access.keyring import ADMIN, Caller, Keyring
from pontil.runtime.proxy.requests.ticket import UNLIMITED, Allowance
from pontil.runtime.tokenizer.tokenizer import Tokenizer

ALICE, BOB, ROOT = "sk-alice-0123456789", "sk-bob-0123456789", "adm-0123456789-adm"
SETTINGS = (("share", 2.0), ("requests", 8), ("priority", True))


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


CALLERS = (("alice", digest(ALICE)), ("bob", digest(BOB)))


@pytest.fixture(scope="module")
def shut(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """A site with two keys: Alice's may set a priority, Bob's may not."""
    folder = tmp_path_factory.mktemp("shut")
    with site(folder, tokenizer, callers=CALLERS, admin=digest(ROOT), allowances=(("alice", SETTINGS),)) as made:
        made.worker()
        yield made


def ask(made: ScriptedSite, key: str, path: str = "/v1/completions", **fields: Any) -> HttpAnswer:
    body = {"model": MODEL, "max_tokens": 1} | fields
    body |= {"prompt": "hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    return made.ask("POST", path, body, {"authorization": f"Bearer {key}"})


def test_a_key_has_what_its_line_says() -> None:
    keyring = Keyring.of([list(one) for one in CALLERS], digest(ROOT), [["alice", [list(one) for one in SETTINGS]]])
    assert keyring.caller(ALICE.encode()) == Caller("alice", False, Allowance(2.0, requests=8, priority=True))
    assert keyring.caller(BOB.encode()) == Caller("bob", False, Allowance())
    assert keyring.caller(ROOT.encode()) == ADMIN and ADMIN.allowance == UNLIMITED


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_who_may_not_is_not_served_before_others(shut: ScriptedSite, path: str) -> None:
    refused = ask(shut, BOB, path, priority=-1)
    error = refused.json["error"]
    assert (refused.status, error["param"], error["type"]) == (403, "priority", "permission_error")
    assert "priority=yes" in error["message"]
    assert [ask(shut, BOB, path, priority=number).status for number in (0, 5)] == [200, 200]
    assert [ask(shut, key, path, priority=-1).status for key in (ALICE, ROOT)] == [200, 200]
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{shut.port}/v1", api_key=BOB, max_retries=0)
    with pytest.raises(openai.PermissionDeniedError):
        client.completions.create(model=MODEL, prompt="hi", extra_body={"priority": -1})


def test_without_keys_everybody_may(bare: ScriptedSite) -> None:
    worker = bare.worker()
    assert bare.complete(priority=-7).status == 200
    assert worker.submits.get(timeout=DEADLINE).priority == -7


def test_another_allowance_counts_from_the_next_request(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer, callers=CALLERS) as made:
        made.worker()
        assert ask(made, ALICE, priority=-1).status == 403
        access = Sanic.get_app(f"pontil-{made.proxy.incarnation}").ctx.access
        access.keyring = Keyring.of(CALLERS, None, [["alice", [["priority", True]]]])
        assert ask(made, ALICE, priority=-1).status == 200
