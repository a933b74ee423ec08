# SPDX-License-Identifier: Apache-2.0
"""An agent's session with real workers: the second turn computes what is new of it, whatever changes at its beginning.
Counts are asserted, not times."""

from pathlib import Path
from typing import Any

import pytest
from served import Served, launched
from tiny_llama import write_tiny_llama

BILLING = "x-anthropic-billing-header: cc_version=2.1.177.{}; cc_entrypoint=cli; cch={};"
SYSTEM = "You are Claude Code, Anthropic's official CLI for Claude. " * 180
HI = {"role": "user", "content": "hi"}


def ask(served: Served, changing: str, turns: list[dict[str, Any]]) -> dict[str, Any]:
    blocks = [{"type": "text", "text": text} for text in (BILLING.format(changing[:3], changing), SYSTEM)]
    reply = served.request("POST", "/v1/messages", {"max_tokens": 8, "system": blocks, "messages": turns})
    assert reply.status == 200, reply.json()
    made: dict[str, Any] = reply.json()
    return made


# Without --long: tests/http/test_stable_prompts.py has the prompts, and the keys of their blocks.
@pytest.mark.long
@pytest.mark.parametrize("roles", [("--role", "mixed"), ()], ids=["one", "pair"])
def test_the_second_turn_computes_what_is_new(tmp_path: Path, roles: tuple[str, ...]) -> None:
    write_tiny_llama(tmp_path / "tiny", max_model_len=16384)
    options = ("--model", str(tmp_path / "tiny"), *roles, "--share-devices", "--kv-cache-memory", "64MiB")
    with launched(tmp_path, *options) as served:
        first = ask(served, "36ee5", [HI])
        said = "".join(block.get("text", "") for block in first["content"]) or "…"
        second = ask(served, "0aaa9", [HI, {"role": "assistant", "content": said}, {"role": "user", "content": "on"}])
        length = first["usage"]["input_tokens"] + first["usage"]["cache_read_input_tokens"]
        assert length > 8192 and second["usage"]["cache_read_input_tokens"] >= length - 32
        (row,) = served.get("/admin/topology")["prompts"]
        assert row["cached_tokens"] == second["usage"]["cache_read_input_tokens"] and row["prompts"] == 2
