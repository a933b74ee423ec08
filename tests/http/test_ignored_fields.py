# SPDX-License-Identifier: Apache-2.0
"""Fields without effect are accepted and named in a header; a strict server refuses them (F3)."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from scripted_site import MODEL, ScriptedSite, site
from scripted_worker import DEADLINE

from pontil.runtime.tokenizer.tokenizer import Tokenizer

HEADER = "x-pontil-ignored"
SENT: dict[str, Any] = {
    "metadata": {"a": "b"}, "user": "me", "safety_identifier": "s", "store": True,
    "parallel_tool_calls": True, "include_reasoning": False,
    "audio": {"voice": "alloy"}, "litellm_trace": {"id": 1}, "extra_body": None, "vllm_xargs": {},
    "tool_choice": "auto",
}  # fmt: skip
NAMED = sorted(SENT.keys() - {"extra_body"})


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path_factory.mktemp("strict"), tokenizer, strict_parameters=True) as made:
        made.pair()
        yield made


def test_every_answer_names_them(pair: ScriptedSite) -> None:
    assert pair.chat().headers[HEADER] is None
    for stream in (False, True):
        answer = pair.chat(**SENT, stream=stream)
        assert answer.status == 200, answer.body
        assert sorted(answer.headers[HEADER].split(", ")) == NAMED
    refused = pair.chat(**SENT, model="nobody")
    assert refused.status == 404 and "metadata" in refused.headers[HEADER]


def test_they_change_no_answer(pair: ScriptedSite) -> None:
    answers = [pair.chat(**fields, seed=1).json for fields in ({}, SENT)]
    assert answers[0]["choices"] == answers[1]["choices"] and answers[0]["usage"] == answers[1]["usage"]


@pytest.mark.parametrize("name", ["metadata", "safety_identifier", "store", "litellm_trace"])
def test_a_strict_server_refuses_them(strict: ScriptedSite, name: str) -> None:
    answer = strict.chat(**{name: SENT[name]})
    assert (answer.status, answer.json["error"]["param"]) == (400, name)
    assert answer.json["error"]["code"] in ("unsupported_parameter", "unknown_parameter")


def test_a_strict_server_takes_what_asks_for_nothing(strict: ScriptedSite) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "refusal": None,
                "annotations": [], "audio": None, "function_call": None}]  # fmt: skip
    fields = {"metadata": {}, "user": "me", "service_tier": "auto", "store": False, "modalities": ["text"]}
    assert strict.chat(**fields, messages=messages).status == 200
    odd = strict.chat(messages=[{"role": "user", "content": "a", "odd": 1}])
    assert (odd.status, odd.json["error"]["param"]) == (400, "messages[0].odd")
    described = strict.ask("GET", "/openapi.json").json["paths"]["/v1/completions"]["post"]["requestBody"]
    assert described["content"]["application/json"]["schema"]["additionalProperties"] is False


def test_a_cache_key_is_a_part_of_the_salt(bare: ScriptedSite) -> None:
    worker = bare.worker()
    asked: list[dict[str, Any]] = [
        {}, {"prompt_cache_key": ""}, {"prompt_cache_key": "ab"}, {"prompt_cache_key": "ab", "user": "x"},
        {"cache_salt": "a", "prompt_cache_key": "b"}, {"cache_salt": "ab"}, {"cache_salt": "2 ab"},
    ]  # fmt: skip
    for fields in asked:
        answer = bare.chat(**fields)
        assert answer.status == 200 and "prompt_cache_key" not in (answer.headers[HEADER] or "")
    salts = [worker.submits.get(timeout=DEADLINE).cache_salt for _ in asked]
    assert salts[0] == salts[1] == "" and salts[2] == salts[3] and salts[5] == "ab"
    assert len(set(salts)) == 5


def test_an_answer_that_a_client_sends_back_is_taken(pair: ScriptedSite) -> None:
    """Libraries append the message object of an answer to the conversation."""
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{pair.port}/v1", api_key="unused", max_retries=0)
    asked: list[Any] = [{"role": "user", "content": "hi"}]
    message = client.chat.completions.create(model=MODEL, messages=asked).choices[0].message
    asked += [message.model_dump() | {"provider_specific_fields": {"refusal": None}, "thinking_blocks": []}, asked[0]]
    assert client.chat.completions.create(model=MODEL, messages=asked).choices[0].message.content
