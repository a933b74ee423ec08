# SPDX-License-Identifier: Apache-2.0
"""Agents' sessions over HTTP: what changes at their beginning costs no prefix, at any door, whole or counted."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site

from pontil.runtime.cache.prefix import full_keys
from pontil.runtime.proxy.routing.held_prefixes import HeldPrefixes, short_key
from pontil.runtime.proxy.routing.prompt_prefix import PromptPrefix
from pontil.runtime.tokenizer.tokenizer import Tokenizer

HEADER = "x-pontil-lines"
BILLING = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=sdk-cli; cch={};"
LONG = "You are Claude Code, Anthropic's official CLI for Claude. " * 180
DATE = "Current date and time: Monday, March 9, 2026 at 06:00:{} PM PDT\nCurrent working directory: /home"
HI = {"role": "user", "content": "hi"}
TURNS = [HI, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "go on"}]
BLOCK = 16


def prompt_of(served: ScriptedSite) -> list[int]:
    return list(served.last_submit().prompt)


def message(made: ScriptedSite, changing: str, turns: list[dict[str, Any]], path: str = "") -> HttpAnswer:
    """Ask as Claude Code does: the first block of the system prompt tells of the billing."""
    blocks = [{"type": "text", "text": text} for text in (BILLING.format(changing), LONG, DATE.format(changing[:2]))]
    return made.ask("POST", f"/v1/messages{path}", {"max_tokens": 9, "system": blocks, "messages": turns})


def chat(made: ScriptedSite, changing: str, turns: list[dict[str, Any]], path: str = "") -> HttpAnswer:
    """Ask as a gateway does that makes a chat of it."""
    system = {"role": "system", "content": "\n\n".join((BILLING.format(changing), LONG, DATE.format(changing[:2])))}
    return made.ask("POST", f"/v1/chat/completions{path}", {"max_tokens": 9, "messages": [system, *turns]})


def response(made: ScriptedSite, changing: str, turns: list[dict[str, Any]], path: str = "") -> HttpAnswer:
    instructions = "\n\n".join((BILLING.format(changing), LONG, DATE.format(changing[:2])))
    body = {"max_output_tokens": 16, "instructions": instructions, "input": turns, "store": False}
    return made.ask("POST", f"/v1/responses{path}", body)


def roomy(made: ScriptedSite) -> None:
    """Add a worker whose context holds a long session."""
    made.worker(max_model_len=32768, num_blocks=2049).free_blocks = 2048


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path_factory.mktemp("wide"), tokenizer) as made:
        roomy(made)
        yield made


@pytest.mark.parametrize("door", [message, chat, response])
def test_the_second_turn_finds_all_of_the_first(wide: ScriptedSite, door: Any) -> None:
    answer = door(wide, "36ee5", TURNS[:1])
    assert answer.status == 200, answer.body
    first = prompt_of(wide)
    answer = door(wide, "09aa9", TURNS)
    second = prompt_of(wide)
    assert answer.headers[HEADER] == "claude-code-billing=left-out, pi-time=moved-to-last-turn"
    held = HeldPrefixes()
    held.keys = dict.fromkeys(short_key(key) for key in full_keys(first, "", BLOCK))
    prefix = PromptPrefix(second, "", BLOCK)
    while prefix.grow([held]):
        pass
    system = len(wide.tokenizer.encode(LONG, False))
    assert system > 8000 and prefix.found(held) >= system
    assert b"cch=" not in (text := wide.tokenizer.decode(second).encode()) and text.count(b"06:00:09") == 1


def test_all_doors_have_one_prompt(wide: ScriptedSite) -> None:
    prompts = []
    for door in (message, chat, response):
        assert door(wide, "36ee5", TURNS).status == 200
        prompts.append(prompt_of(wide))
    assert prompts[0] == prompts[1] == prompts[2]
    counted = message(wide, "36ee5", TURNS, "/count_tokens")
    assert counted.json == {"input_tokens": len(prompts[0])} and counted.headers[HEADER].startswith("claude-code")
    assert response(wide, "36ee5", TURNS, "/input_tokens").json["input_tokens"] == len(prompts[0])
    assert chat(wide, "36ee5", TURNS, "/render").json["token_ids"] == prompts[0]


def test_an_ordinary_prompt_is_as_it_was(wide: ScriptedSite) -> None:
    answer = wide.ask("POST", "/v1/messages", {"max_tokens": 9, "system": "Be brief.", "messages": TURNS})
    assert answer.status == 200 and answer.headers[HEADER] is None


def test_it_can_be_turned_off(tmp_path: Any, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer, stable_prompts=False) as made:
        roomy(made)
        answer = message(made, "36ee5", TURNS)
        assert answer.status == 200 and answer.headers[HEADER] is None
        assert made.tokenizer.decode(prompt_of(made)).count("cch=36ee5;") == 1
        assert json.loads(answer.body)["model"] == MODEL


def test_the_status_says_how_much_was_reused_and_where_prompts_differ(tmp_path: Any, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer, stable_prompts=False) as made:
        roomy(made)
        for changing in ("36ee5", "09aa9"):
            assert message(made, changing, TURNS).status == 200
        (row,) = made.ask("GET", "/admin/topology").json["prompts"]
        assert (row["key"], row["prompts"]) == ("-", 2) and row["prompt_tokens"] > 16000
        found = row["difference"]
        assert (found["part"], found["message"]) == ("system", 0)
        assert 70 < found["token"] < 200 < found["of"], "it begins within the line that changes"
        assert made.value("pontil_prompt_differences_total", part="system") == 1
        assert message(made, "09aa9", TURNS).status == 200
        assert made.ask("GET", "/admin/topology").json["prompts"][0]["difference"] is None
