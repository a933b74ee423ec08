# SPDX-License-Identifier: Apache-2.0
"""Several conversations in one request: each is answered as the chat that it is."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from saying_sites import Sites
from scripted_site import HttpAnswer, ScriptedSite
from scripted_worker import DEADLINE, eventually, silent

PATH = "/v1/chat/completions/batch"
USER = [{"role": "user", "content": "hi"}]
TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "So: "},
]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with ExitStack() as stack:
        yield Sites(tmp_path_factory.mktemp("sites"), stack)


def ask(served: ScriptedSite, *conversations: Any, **fields: Any) -> HttpAnswer:
    return served.ask("POST", PATH, {"messages": list(conversations)} | fields)


def alone(served: ScriptedSite, conversation: Any, **fields: Any) -> Any:
    return served.ask("POST", "/v1/chat/completions", {"messages": conversation} | fields).json


@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_conversation_is_answered_as_alone(bare: ScriptedSite, count: int) -> None:
    """One worker serves both parts: two scripted ones do not wait for each other as real ones do."""
    bare.worker()
    conversations = [USER, TALK, *[USER] * 3][:count]
    fields = {"max_tokens": 5, "return_token_ids": True, "prompt_logprobs": 0, "logprobs": True, "seed": 3}
    answer = ask(bare, *conversations, **fields)
    assert answer.status == 200, answer.body
    said = answer.json
    assert said["object"] == "chat.completion" and [one["index"] for one in said["choices"]] == list(range(count))
    singles = [alone(bare, conversation, **fields) for conversation in conversations]
    for index, (choice, single) in enumerate(zip(said["choices"], singles, strict=True)):
        about = {name: single[name] for name in ("prompt_token_ids", "prompt_logprobs")}
        assert choice == single["choices"][0] | {"index": index} | about
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert said["usage"][name] == sum(single["usage"][name] for single in singles)
    assert said.keys() == singles[0].keys() - {"prompt_token_ids", "prompt_logprobs"}


def test_each_goes_on_with_its_own_last_message(pair: ScriptedSite) -> None:
    other = [*USER, {"role": "assistant", "content": "Well, "}]
    answer = ask(pair, TALK, other, echo=True, continue_final_message=True, max_tokens=5)
    assert [one["message"]["content"] for one in answer.json["choices"]] == ["So: Hello", "Well, Hello"]


def test_reasoning_is_told_apart_in_each_and_counted_over_all(sites: Sites) -> None:
    """Only the second conversation has opened reasoning that the answer closes."""
    served = sites.saying("opening", "hm</think>yes")
    begun = [[*USER, {"role": "assistant", "content": text}] for text in ("so", "<think>so")]
    fields = {"continue_final_message": True}
    said = ask(served, *begun, **fields).json
    singles = [alone(served, one, **fields) for one in begun]
    messages = [one["message"] for one in said["choices"]]
    assert messages == [single["choices"][0]["message"] for single in singles]
    assert "reasoning" not in messages[0] and messages[1]["reasoning"] == "hm" and messages[1]["content"] == "yes"
    counts = [single["usage"]["completion_tokens_details"]["reasoning_tokens"] for single in singles]
    assert said["usage"]["completion_tokens_details"]["reasoning_tokens"] == sum(counts) > 0


def test_a_structure_holds_for_each(bare: ScriptedSite) -> None:
    worker = bare.worker()
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    structure = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    answer = ask(bare, USER, TALK, response_format=structure)
    assert answer.headers["x-pontil-schema"] == "not met"
    assert [one["x_pontil_schema"]["state"] for one in answer.json["choices"]] == ["not met"] * 2
    assert all(worker.submits.get(timeout=DEADLINE).sampling["grammar"] for _ in range(2))


@pytest.mark.parametrize(
    ("messages", "fields", "param"),
    [
        (USER, {}, "messages[0]"),
        ([], {}, "messages"),
        ("hi", {}, "messages"),
        ([USER, []], {}, "messages[1]"),
        ([USER, "hi"], {}, "messages[1]"),
        ([USER, ["hi"]], {}, "messages[1][0]"),
        ([USER, [USER[0], {"role": "user", "content": 3}]], {}, "messages[1][1].content"),
        ([USER] * 65, {}, "messages"),
        ([USER, [{"role": f"role{number}", "content": "x"} for number in range(9)]], {}, "messages[1]"),
        ([USER, [{"role": "user", "content": "x" * 4000}]], {}, "messages[1]"),
        ([USER, [{"role": "user", "content": "x" * 90_000}]], {}, "messages[1]"),
        ([USER], {"n": 2}, "n"),
        ([USER], {"stream": True}, "stream"),
        ([USER], {"stream_options": {}}, "stream_options"),
        ([USER], {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ([USER], {"tool_choice": "auto"}, "tool_choice"),
        ([USER], {"functions": [{"name": "f"}]}, "functions"),
        ([USER], {"use_beam_search": True}, "use_beam_search"),
        ([USER], {"temperature": 9}, "temperature"),
    ],
)
def test_what_is_refused_is_named(pair: ScriptedSite, messages: Any, fields: dict[str, Any], param: str) -> None:
    answer = pair.ask("POST", PATH, {"messages": messages, "max_tokens": 2} | fields)
    error = answer.json["error"]
    assert answer.status == 400 and error["param"] == param and pair.proxy.idle
    assert param in error["message"]


def test_what_asks_for_nothing_is_taken(pair: ScriptedSite) -> None:
    neutral = {"n": 1, "stream": False, "tools": [], "tool_choice": "none", "functions": [], "function_call": "none"}
    assert len(ask(pair, USER, USER, max_tokens=2, **neutral).json["choices"]) == 2


@pytest.mark.parametrize(
    ("budget", "param"), [({"max_tokens": 400}, "max_tokens"), ({"min_tokens": 300}, "min_tokens")]
)
def test_a_budget_that_one_of_them_leaves_no_room_for(pair: ScriptedSite, budget: dict[str, int], param: str) -> None:
    context = pair.ask("GET", "/v1/models").json["data"][0]["max_model_len"]
    long = [{"role": "user", "content": "x" * (context - 200)}]
    answer = ask(pair, USER, long, **budget)
    error = answer.json["error"]
    assert answer.status == 400 and error["param"] == param and "(in messages[1])" in error["message"]
    assert pair.proxy.idle


def test_more_than_are_ever_let_in_are_refused(bare: ScriptedSite) -> None:
    """One worker of eight slots takes 32 at once."""
    bare.worker()
    assert len(ask(bare, *[USER] * 32, max_tokens=1).json["choices"]) == 32
    error = ask(bare, *[USER] * 33, max_tokens=1).json["error"]
    assert error["param"] == "messages" and "the conversations ask for 33 choices" in error["message"]
    assert bare.proxy.idle


def test_without_workers_none_is_served(bare: ScriptedSite) -> None:
    assert ask(bare, USER, USER).status == 503 and bare.proxy.idle


def test_a_client_that_leaves_ends_all_of_them(bare: ScriptedSite) -> None:
    worker = bare.worker(script=silent)
    connection = bare.connect()
    connection.request("POST", PATH, json.dumps({"messages": [USER, USER], "max_tokens": 1}))
    for _ in range(2):
        worker.submits.get(timeout=DEADLINE)
    connection.close()
    eventually(lambda: bare.proxy.idle, "the end of both requests")
