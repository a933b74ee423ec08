# SPDX-License-Identifier: Apache-2.0
"""Prefix caches per API key, with real workers: no key hits another's prefixes, unless they are shared."""

from pathlib import Path

import pytest
from served import launched

KEYS = {"alice": "sk-alice-0123456789", "bob": "sk-bob-0123456789", "admin": "adm-0123456789-adm"}
PROMPT = "the glazier whispered quietly to the judge and the jury that nobody had ever seen the letter"


# Without --long: tests/http/fields/test_cache_salt.py has the salts, tests/runtime/engine/prefixes/test_cache.py their
# effect.
@pytest.mark.long
@pytest.mark.parametrize("flags", [(), ("--share-prefixes",)], ids=["own", "shared"])
def test_cached_tokens_tell_nothing_of_other_keys(tmp_path: Path, model: str, flags: tuple[str, ...]) -> None:
    path = tmp_path / "keys"
    path.write_text(f"alice={KEYS['alice']} weight=2 rate=600\nbob={KEYS['bob']}\n")
    path.chmod(0o600)
    options = ("--model", model, "--role", "mixed", "--kv-cache-memory", "8MiB", "--api-keys", str(path), *flags)
    with launched(tmp_path, *options, variables={"PONTIL_ADMIN_KEY": KEYS["admin"]}) as served:

        def cached(key: str, **fields: str) -> int:
            body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1} | fields
            reply = served.request("POST", "/v1/completions", body, {"authorization": f"Bearer {key}"})
            answer = reply.json()
            assert reply.status == 200, answer
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        first = [cached(key) for key in KEYS.values()]
        again = [cached(key) for key in KEYS.values()]
        assert first[0] == 0 and min(again) > 0
        assert first[1:] == (again[1:] if flags else [0, 0])
        assert [cached(key, cache_salt="x") > 0 for key in KEYS.values()] == [False, bool(flags), bool(flags)]
