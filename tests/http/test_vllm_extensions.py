# SPDX-License-Identifier: Apache-2.0
"""Fields that vLLM's and SGLang's clients send and read, whole and streamed."""

import json
from typing import Any

import pytest
from scripted_site import HttpAnswer, ScriptedSite
from scripted_worker import DEADLINE, eventually, silent

ASK = pytest.mark.parametrize("ask", ["complete", "chat"])


def last_choice(answer: HttpAnswer) -> dict[str, Any]:
    """Return the only choice of an answer, or its last chunk in a stream."""
    events = answer.events
    choice: dict[str, Any] = events[-2]["choices"][0] if events else answer.json["choices"][0]
    return choice


@ASK
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "reason", "stop_reason"),
    [
        ({"max_tokens": 40}, "stop", None),
        ({"max_tokens": 3}, "length", None),
        ({"max_tokens": 3, "stop": "lo"}, "length", None),
        ({"max_tokens": 40, "stop": ["x", "lo"]}, "stop", "lo"),
        ({"max_tokens": 40, "stop": "lo", "include_stop_str_in_output": True}, "stop", "lo"),
    ],
)
def test_what_stopped_an_answer_is_told(
    pair: ScriptedSite, ask: str, stream: bool, fields: dict[str, Any], reason: str, stop_reason: str | None
) -> None:
    choice = last_choice(getattr(pair, ask)(stream=stream, **fields))
    assert (choice["finish_reason"], choice["stop_reason"]) == (reason, stop_reason)


@ASK
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_token_is_told_by_its_id(pair: ScriptedSite, ask: str, stream: bool) -> None:
    (token,) = pair.tokenizer.encode("o", False)
    choice = last_choice(getattr(pair, ask)(stream=stream, max_tokens=40, stop_token_ids=[token]))
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", token)


@pytest.mark.parametrize("stream", [False, True])
def test_ids_of_several_prompts_stand_in_their_choices(pair: ScriptedSite, stream: bool) -> None:
    prompts = [[5, 6], [7, 8, 9]]
    answer = pair.complete(prompts, n=2, max_tokens=2, return_token_ids=True, stream=stream)
    events = answer.events[:-1] if stream else [answer.json]
    shown: dict[int, list[list[int]]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        if "prompt_token_ids" in choice:
            shown.setdefault(choice["index"], []).append(choice["prompt_token_ids"])
    assert shown == {0: [[5, 6]], 1: [[5, 6]], 2: [[7, 8, 9]], 3: [[7, 8, 9]]}


def test_prompt_logprobs_of_a_chat_stand_once_for_all_choices(pair: ScriptedSite) -> None:
    answer = pair.chat(prompt_logprobs=0, max_tokens=1, n=2).json
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert answer["prompt_logprobs"][0] is None
    assert not any("prompt_logprobs" in choice for choice in answer["choices"])


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_logprobs_are_named_by_id(pair: ScriptedSite, stream: bool) -> None:
    asked = {"max_tokens": 2, "stream": stream, "return_tokens_as_token_ids": True}
    ids = pair.tokenizer.encode("He", False)
    answer = pair.complete([7, 8], logprobs=1, echo=True, **asked)
    choices = [choice for event in answer.events[:-1] for choice in event["choices"]]
    pieces = [choice["logprobs"] for choice in choices or answer.json["choices"] if choice["logprobs"]]
    assert [token for piece in pieces for token in piece["tokens"]] == [f"token_id:{one}" for one in (7, 8, *ids)]
    assert all(name.startswith("token_id:") for piece in pieces for top in piece["top_logprobs"] if top for name in top)
    answer = pair.chat(logprobs=True, top_logprobs=1, **asked)
    choices = [choice for event in answer.events[:-1] for choice in event["choices"]]
    shown = [choice["logprobs"] for choice in choices or answer.json["choices"] if choice["logprobs"]]
    entries = [entry for piece in shown for entry in piece["content"]]
    assert [entry["token"] for entry in entries] == [f"token_id:{one}" for one in ids]
    assert [bytes(entry["bytes"]) for entry in entries] == [b"H", b"e"]
    assert all(entry["top_logprobs"][0]["token"].startswith("token_id:") for entry in entries)


def test_names_by_id_need_logprobs(pair: ScriptedSite) -> None:
    answer = pair.chat(max_tokens=1, return_tokens_as_token_ids=True)
    assert answer.headers["x-pontil-ignored"] == "return_tokens_as_token_ids"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_named_tokens_are_shown(pair: ScriptedSite, stream: bool) -> None:
    asked = {"max_tokens": 2, "stream": stream, "logprob_token_ids": [7, 9, 7], "return_tokens_as_token_ids": True}
    own = [f"token_id:{one}" for one in pair.tokenizer.encode("He", False)]
    answer = pair.complete([7, 8], logprobs=5, **asked)
    choices = [choice for event in answer.events[:-1] for choice in event["choices"]]
    shown = [choice["logprobs"] for choice in choices or answer.json["choices"] if choice["logprobs"]]
    tops = [top for piece in shown for top in piece["top_logprobs"]]
    assert tops == [{"token_id:7": -0.5, "token_id:9": -1.0, name: -1.5} for name in own]
    answer = pair.chat(logprobs=True, top_logprobs=5, **asked)
    choices = [choice for event in answer.events[:-1] for choice in event["choices"]]
    shown = [choice["logprobs"] for choice in choices or answer.json["choices"] if choice["logprobs"]]
    entries = [entry for piece in shown for entry in piece["content"]]
    named = [[(top["token"], top["logprob"]) for top in entry["top_logprobs"]] for entry in entries]
    assert named == [[("token_id:7", -0.5), ("token_id:9", -1.0)]] * 2


@ASK
@pytest.mark.parametrize(
    "fields", [{}, {"logprobs": True, "ids": [1 << 40]}, {"logprobs": True, "ids": list(range(129))}, {"ids": "a"}]
)
def test_named_tokens_need_logprobs_and_are_few(pair: ScriptedSite, ask: str, fields: dict[str, Any]) -> None:
    asked = {"logprob_token_ids": fields.get("ids", [3])}
    asked |= {"logprobs": True if ask == "chat" else 0} if "logprobs" in fields else {}
    answer = getattr(pair, ask)(**asked)
    assert answer.status == 400 and answer.json["error"]["param"] == "logprob_token_ids"
    assert getattr(pair, ask)(logprob_token_ids=[], max_tokens=1).status == 200


@ASK
@pytest.mark.parametrize("fields", [{"logprobs": -1}, {"prompt_logprobs": -1}, {"logprobs": True, "top_logprobs": -1}])
def test_the_whole_vocabulary_is_refused_by_name(pair: ScriptedSite, ask: str, fields: dict[str, Any]) -> None:
    answer = getattr(pair, ask)(**fields)
    assert answer.status == 400 and answer.json["error"]["param"] in ("logprobs", "prompt_logprobs", "top_logprobs")


@pytest.mark.parametrize(("side", "kept"), [("left", [8, 9]), ("right", [5, 6]), (None, [8, 9])])
def test_a_prompt_is_cut_at_either_end(pair: ScriptedSite, side: str | None, kept: list[int]) -> None:
    asked = {"truncate_prompt_tokens": 2, "truncation_side": side, "return_token_ids": True, "max_tokens": 1}
    assert pair.complete([5, 6, 7, 8, 9], **asked).json["choices"][0]["prompt_token_ids"] == kept


def test_a_side_needs_something_to_cut(pair: ScriptedSite) -> None:
    assert pair.complete(max_tokens=1, truncation_side="right").headers["x-pontil-ignored"] == "truncation_side"
    assert pair.complete(max_tokens=1, truncation_side="middle").json["error"]["param"] == "truncation_side"


def ask(served: ScriptedSite, *messages: tuple[str, str], **fields: Any) -> HttpAnswer:
    body = {"messages": [{"role": role, "content": content} for role, content in messages], "max_tokens": 5}
    return served.ask("POST", "/v1/chat/completions", body | fields)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("last", "more", "text"),
    [
        ("assistant", {"continue_final_message": True}, "So: Hello"),
        ("assistant", {"add_generation_prompt": True}, "So: Hello"),
        ("user", {"add_generation_prompt": False}, "So: Hello"),
        ("user", {}, "Hello"),
    ],
)
def test_a_chat_echoes_the_message_that_it_goes_on_with(
    pair: ScriptedSite, stream: bool, last: str, more: dict[str, Any], text: str
) -> None:
    answer = ask(pair, ("user", "hi"), (last, "So: "), echo=True, stream=stream, **more)
    assert (answer.text if stream else answer.json["choices"][0]["message"]["content"]) == text
    assert answer.headers["x-pontil-ignored"] == (None if text.startswith("So") else "echo")
    assert ask(pair, ("user", "hi"), (last, "So: "), **more).json["choices"][0]["message"]["content"] == "Hello"


def test_a_role_that_the_template_shows_is_taken(pair: ScriptedSite) -> None:
    asked = {"messages": [{"role": "user", "content": "a"}, {"role": "critic", "content": "b"}]}
    ids = pair.ask("POST", "/tokenize", asked).json["tokens"]
    assert "<|im_start|>critic\nb<|im_end|>" in pair.tokenizer.decode(ids, skip_special_tokens=False)
    assert ask(pair, *((f"role{number}", "x") for number in range(9))).json["error"]["param"] == "messages"
    assert ask(pair, ("bad role", "x")).json["error"]["param"] == "messages[0].role"


@pytest.mark.parametrize("stream", [False, True])
def test_invocations_are_chats_or_completions(pair: ScriptedSite, stream: bool) -> None:
    asked = {"max_tokens": 5, "stream": stream}
    chat = pair.ask("POST", "/invocations", {"messages": [{"role": "user", "content": "hi"}]} | asked)
    plain = pair.ask("POST", "/invocations", {"prompt": "hi", "messages": []} | asked)
    kinds = [(answer.events[0] if stream else answer.json)["object"] for answer in (chat, plain)]
    assert kinds == ["chat.completion.chunk" if stream else "chat.completion", "text_completion"]
    assert pair.ask("POST", "/invocations", {}).json["error"]["param"] == "prompt"
    assert pair.ask("POST", "/invocations", {"messages": []}).json["error"]["param"] == "messages"


def test_a_chat_is_rendered_as_it_would_be_answered(pair: ScriptedSite) -> None:
    asked = {"messages": [{"role": "user", "content": "hello"}], "truncate_prompt_tokens": 4, "max_tokens": 1}
    rendered = pair.ask("POST", "/v1/chat/completions/render", asked).json["token_ids"]
    answer = pair.ask("POST", "/v1/chat/completions", asked | {"return_token_ids": True}).json
    assert rendered == answer["prompt_token_ids"] and len(rendered) == 4


def test_load_counts_what_is_in_flight(bare: ScriptedSite) -> None:
    worker = bare.worker(script=silent)
    assert bare.ask("GET", "/load").json == {"server_load": 0}
    connection = bare.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "hi", "max_tokens": 1}))
    worker.submits.get(timeout=DEADLINE)
    assert bare.ask("GET", "/load").json == {"server_load": 1}
    connection.close()
    eventually(lambda: bare.ask("GET", "/load").json == {"server_load": 0}, "the end of the request")


@pytest.mark.parametrize("prompt", [{"text": "hi"}, {"input_ids": [5, 6]}])
def test_generate_answers_as_sglang_does(pair: ScriptedSite, prompt: dict[str, Any]) -> None:
    asked = prompt | {"sampling_params": {"max_new_tokens": 40, "stop": "lo", "temperature": 0.5}}
    whole = pair.ask("POST", "/generate", asked).json
    assert whole["text"] == "Hel" and whole["output_ids"] == pair.tokenizer.encode("Hello", False)
    about = whole["meta_info"]
    assert about["finish_reason"] == {"type": "stop", "matched": "lo"} and about["completion_tokens"] == 5
    *events, last, done = pair.ask("POST", "/generate", asked | {"stream": True}).events
    assert done == "[DONE]" and last["text"] == "Hel" and last["output_ids"] == whole["output_ids"]
    names = ("finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens")
    assert [last["meta_info"][name] for name in names] == [about[name] for name in names]
    assert all("Hel".startswith(event["text"]) and event["meta_info"]["finish_reason"] is None for event in events)


def test_generate_stops_at_sglangs_budget(pair: ScriptedSite) -> None:
    about = pair.ask("POST", "/generate", {"text": "hi", "sampling_params": {"ignore_eos": True}}).json["meta_info"]
    assert about["finish_reason"] == {"type": "length", "length": 128} and about["completion_tokens"] == 128


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "text"), ({"text": "a", "input_ids": [1]}, "text"), ({"text": ""}, "text"), ({"text": ["a"]}, "text"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 0}}, "sampling_params.max_new_tokens"),
        ({"text": "a", "sampling_params": {"temperature": "x"}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"n": 2}}, "sampling_params.n"),
        ({"text": "a", "sampling_params": {"stream": True}}, "sampling_params"),
        ({"text": "a", "return_logprob": True}, "return_logprob"), ({"input_ids": []}, "input_ids"),
    ],
)  # fmt: skip
def test_what_generate_refuses_is_named_as_it_was_sent(pair: ScriptedSite, fields: dict[str, Any], param: str) -> None:
    answer = pair.ask("POST", "/generate", fields)
    assert answer.status == 400 and answer.json["error"]["param"] == param
    assert param.partition(".")[2] in answer.json["error"]["message"]


def test_generate_follows_a_grammar(bare: ScriptedSite) -> None:
    worker = bare.worker()
    schema = {"type": "object", "not": {"required": ["a"]}}
    for stream in (False, True):
        asked = {"text": "a", "stream": stream, "sampling_params": {"json_schema": json.dumps(schema)}}
        answer = bare.ask("POST", "/generate", asked)
        told = answer.events[-2] if stream else answer.json
        assert told["text"] == "Hello 😀 world" and told["meta_info"]["finish_reason"]["type"] == "stop"
        assert worker.submits.get(timeout=DEADLINE).sampling["grammar"]
