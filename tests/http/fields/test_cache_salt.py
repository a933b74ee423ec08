# SPDX-License-Identifier: Apache-2.0
"""No caller hits prefixes that another caller's requests have cached."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_site import MODEL, ScriptedSite, site
from scripted_worker import DEADLINE

from pontil.http.fields.prompt import cache_salt
from pontil.runtime.proxy.requests.ticket import NO_KEY
from pontil.runtime.tokenizer.tokenizer import Tokenizer

KEYS = {name: f"sk-{name}-0123456789" for name in ("alice", "bob", "root")}
CALLERS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@given(CALLERS, CALLERS, st.text(max_size=9), st.text(max_size=9))
def test_a_salt_is_one_callers(one: str, other: str, stated: str, others: str) -> None:
    made = cache_salt(one, stated, share_prefixes=False)
    assert (made == cache_salt(other, others, share_prefixes=False)) == ((one, stated) == (other, others))
    assert made not in ("", stated)
    assert cache_salt(other, made, share_prefixes=False) != made, "to know it does not help"
    assert cache_salt(one, stated, share_prefixes=True) == cache_salt(NO_KEY, stated, share_prefixes=False) == stated


@pytest.mark.parametrize("shared", [False, True])
def test_each_key_has_prefixes_of_its_own(tmp_path: Path, tokenizer: Tokenizer, shared: bool) -> None:
    """Alice has two keys, and the admin key is a caller too."""
    callers = (("alice", digest(KEYS["alice"])), ("bob", digest(KEYS["bob"])), ("alice", digest("sk-alice-9876543210")))
    with site(tmp_path, tokenizer, callers=callers, admin=digest(KEYS["root"]), share_prefixes=shared) as made:
        worker = made.worker()

        def salt(key: str, **fields: str) -> str:
            body = {"model": MODEL, "prompt": "hi", "max_tokens": 1} | fields
            answer = made.ask("POST", "/v1/completions", body, {"authorization": f"Bearer {key}"})
            assert answer.status == 200, answer.body
            return worker.submits.get(timeout=DEADLINE).cache_salt

        plain = [salt(key) for key in KEYS.values()]
        stated = [salt(key, cache_salt="tenant") for key in KEYS.values()]
        assert len({*plain, *stated}) == (2 if shared else 6)
        assert salt("sk-alice-9876543210") == plain[0] and salt(KEYS["bob"], cache_salt="tenant") == stated[1]
        if shared:
            assert (plain[0], stated[0]) == ("", "tenant")


def test_without_keys_a_salt_is_what_was_stated(bare: ScriptedSite) -> None:
    worker = bare.worker()
    bare.chat(cache_salt="tenant", max_tokens=1)
    bare.chat(max_tokens=1)
    assert [worker.submits.get(timeout=DEADLINE).cache_salt for _ in range(2)] == ["tenant", ""]
