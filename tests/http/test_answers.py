# SPDX-License-Identifier: Apache-2.0
"""Responses: the same text, ids, usage and finish_reason for every kind of request (A8)."""

import json
from typing import Any

import pytest
from scripted_site import MODEL, HttpAnswer, ScriptedSite

TEXT = "Hello 😀 world"
USAGE = {"include_usage": True}


def streamed(answer: HttpAnswer) -> tuple[str, list[int], str, dict[str, Any]]:
    """Return text, ids, finish_reason and usage of a stream's first choice."""
    *events, usage, done = answer.events
    assert done == "[DONE]" and usage["choices"] == [] and all(event["usage"] is None for event in events)
    choices = [choice for event in events for choice in event["choices"]]
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    ids = [number for choice in choices for number in choice.get("token_ids", ())]
    return answer.text, ids, reasons[-1], usage["usage"]


def whole(answer: HttpAnswer) -> tuple[str, list[int], str, dict[str, Any]]:
    (choice,) = answer.json["choices"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return text, choice["token_ids"], choice["finish_reason"], answer.json["usage"]


CASES: list[tuple[dict[str, Any], str, str, int]] = [
    ({"max_tokens": 40}, TEXT, "stop", 15),
    ({"max_tokens": 15}, TEXT, "stop", 15),
    ({"max_tokens": 14}, TEXT, "length", 14),
    ({"max_tokens": 1}, "H", "length", 1),
    ({"max_tokens": 2}, "He", "length", 2),
    ({"max_tokens": 8}, "Hello \ufffd", "length", 8),
    ({"max_tokens": 40, "stop": "😀"}, "Hello ", "stop", 10),
    ({"max_tokens": 40, "stop": ["lo ", "x"], "include_stop_str_in_output": True}, "Hello ", "stop", 6),
    ({"max_tokens": 16, "ignore_eos": True}, TEXT, "length", 16),
    ({"max_tokens": 15, "skip_special_tokens": False}, TEXT + "<|im_end|>", "stop", 15),
]


@pytest.mark.parametrize("ask", ["complete", "chat"])
@pytest.mark.parametrize(("fields", "text", "reason", "count"), CASES, ids=lambda value: str(value)[:40])
def test_stream_and_whole_agree(
    pair: ScriptedSite, ask: str, fields: dict[str, Any], text: str, reason: str, count: int
) -> None:  # A6, A8
    fields = {"return_token_ids": True} | fields
    one = whole(getattr(pair, ask)(**fields))
    assert one == streamed(getattr(pair, ask)(stream=True, stream_options=USAGE, **fields))
    assert one[0] == text and one[2] == reason and len(one[1]) == count
    assert one[3]["completion_tokens"] == count
    assert one[3]["total_tokens"] == one[3]["prompt_tokens"] + count
    names = {"reasoning_tokens", "audio_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens"}
    chat = {"completion_tokens_details": dict.fromkeys(names, 0)} if ask == "chat" else {}
    assert {name: value for name, value in one[3].items() if "completion_tokens_" in name} == chat
    assert one[3]["prompt_tokens_details"] == {"cached_tokens": 0} | ({"audio_tokens": 0} if chat else {})


def test_an_immediate_end_is_one_token(bare: ScriptedSite) -> None:  # A3, A8
    bare.pair(text="")
    fields = {"return_token_ids": True, "max_tokens": 5}
    assert whole(bare.complete(**fields)) == streamed(bare.complete(stream=True, stream_options=USAGE, **fields))
    assert whole(bare.complete(**fields))[:3] == ("", [2], "stop")


def test_default_budgets(pair: ScriptedSite) -> None:
    assert pair.complete(ignore_eos=True).json["usage"]["completion_tokens"] == 16
    usage = pair.chat(ignore_eos=True).json["usage"]
    assert usage["total_tokens"] == 512, "a chat may use the rest of the context"
    assert pair.chat(ignore_eos=True, max_tokens=3).json["usage"]["completion_tokens"] == 3
    assert pair.chat(ignore_eos=True, max_completion_tokens=3).json["usage"]["completion_tokens"] == 3


def test_every_prompt_form_counts_alike(pair: ScriptedSite) -> None:  # F2
    ids = pair.tokenizer.encode("hello there", True)
    for prompt in ("hello there", ["hello there"], ids, [ids]):
        assert pair.complete(prompt).json["usage"]["prompt_tokens"] == len(ids)


def test_two_prompts_are_two_choices(pair: ScriptedSite) -> None:
    answer = pair.complete(["a", "bcd"], max_tokens=3).json
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(0, "Hel"), (1, "Hel")]
    assert answer["usage"]["prompt_tokens"] == 4 and answer["usage"]["completion_tokens"] == 6
    events = pair.complete(["a", "bcd"], max_tokens=3, stream=True, stream_options=USAGE).events
    assert events[-1] == "[DONE]" and events[-2]["usage"] == answer["usage"]
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    for index in (0, 1):
        mine = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in mine) == "Hel" and mine[-1]["finish_reason"] == "length"


def test_a_character_split_over_tokens_comes_whole(pair: ScriptedSite) -> None:  # A7
    events = pair.complete(max_tokens=40, stream=True).events
    assert "😀" in "".join(event["choices"][0]["text"] for event in events[:-1])
    assert "\ufffd" not in json.dumps(events, ensure_ascii=False)


def test_the_parts_of_a_chat_stream(pair: ScriptedSite) -> None:  # F4
    answer = pair.chat(stream=True, max_tokens=4)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    first, *rest, last, done = answer.events
    assert first["object"] == "chat.completion.chunk" and done == "[DONE]"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert last["choices"][0] == {
        "index": 0, "delta": {}, "logprobs": None, "finish_reason": "length", "stop_reason": None,
    }  # fmt: skip
    assert all("role" not in event["choices"][0]["delta"] for event in rest)
    assert len({event["id"] for event in answer.events[:-1]}) == 1
    assert "usage" not in first, "nobody asked"


@pytest.mark.parametrize("ask", ["complete", "chat"])
@pytest.mark.parametrize("more", [{}, {"return_token_ids": True}])
def test_continuous_usage_grows_to_the_final_one(pair: ScriptedSite, ask: str, more: dict[str, Any]) -> None:  # A10
    """Every chunk has it, that of the role too."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, final, done = getattr(pair, ask)(max_tokens=4, stream=True, stream_options=options, **more).events
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == final["usage"]["completion_tokens"] == 4
    if ask == "chat" or more:
        assert counts[0] == 0, "nothing of the answer is told with the role, or with the prompt's ids"


def test_text_parts_and_plain_content_are_the_same_prompt(pair: ScriptedSite) -> None:
    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}]
    assert pair.chat(parts).json["usage"] == pair.chat("hello there").json["usage"]
    rendered = "<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n"
    assert pair.chat(parts).json["usage"]["prompt_tokens"] == len(pair.tokenizer.encode(rendered, False))


def test_what_reaches_the_worker_is_what_was_asked(bare: ScriptedSite) -> None:  # D13
    worker = bare.worker()
    asked = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 42, "stop": ["x", "y"], "stop_token_ids": [9],
        "include_stop_str_in_output": True, "skip_special_tokens": False, "ignore_eos": True, "max_tokens": 3,
    }  # fmt: skip
    bare.complete([5, 6, 7], **asked)
    submit = worker.submits.get_nowait()
    assert submit.prompt == [5, 6, 7] and submit.sampling | asked == submit.sampling
    bare.complete([5])
    assert worker.submits.get_nowait().sampling["seed"] >= 0, "a seed is minted"
    bare.complete([5], seed=-1, top_k=-1)
    sampling = worker.submits.get_nowait().sampling
    assert sampling["seed"] == 2**63 - 1 and sampling["top_k"] == 0


def test_headers(pair: ScriptedSite) -> None:  # F6
    answer = pair.ask("POST", "/v1/completions", {"prompt": "a"}, {"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-pontil-route"] == "prefill:0>decode:0"
    assert pair.complete(stream=True).headers["x-pontil-route"] == "prefill:0>decode:0"
    for bad in ("", "a b", "x" * 129, "é"):
        answer = pair.ask("GET", "/health", None, {"X-Request-Id": bad})
        assert len(answer.headers["x-request-id"]) == 24
    assert pair.ask("GET", "/v1/nothing").headers["x-request-id"]


def test_tokenize_and_back(pair: ScriptedSite) -> None:  # F1
    answer = pair.ask("POST", "/tokenize", {"model": MODEL, "prompt": "héllo"}).json
    ids = pair.tokenizer.encode("héllo", True)
    assert answer == {"tokens": ids, "count": len(ids), "max_model_len": 512, "token_strs": None}
    assert pair.ask("POST", "/detokenize", {"tokens": answer["tokens"]}).json == {"prompt": "héllo"}
    assert pair.ask("POST", "/tokenize", {"prompt": ""}).json["tokens"] == []
    chat = pair.ask("POST", "/tokenize", {"messages": [{"role": "user", "content": "hi"}]}).json
    assert chat["count"] == pair.chat("hi").json["usage"]["prompt_tokens"]


def test_tokenize_as_it_is_asked(pair: ScriptedSite) -> None:
    def tokens(**asked: Any) -> Any:
        return pair.ask("POST", "/tokenize", asked).json

    shown = tokens(prompt="aé", return_token_strs=True, add_special_tokens=False)
    assert shown["token_strs"] == ["a", "Ã", "©"], "as a byte-level vocabulary writes bytes"
    assert shown["tokens"] == pair.tokenizer.encode("aé", False)
    messages = [{"role": "assistant", "content": "hi"}]
    chat, bare = tokens(messages=messages), tokens(messages=messages, add_generation_prompt=False)
    assert chat["tokens"][: bare["count"]] == bare["tokens"] and chat["count"] > bare["count"]
    for wrong, param in (
        ({"prompt": "a", "messages": messages}, "prompt"),
        ({"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        ({"prompt": "a", "tools": []}, "tools"),
        ({"messages": []}, "messages"),
    ):
        assert tokens(**wrong)["error"]["param"] == param


def test_what_the_server_says_about_itself(pair: ScriptedSite) -> None:  # F1
    (model,) = pair.ask("GET", "/v1/models").json["data"]
    assert model["id"] == MODEL and model["max_model_len"] == 512
    assert pair.ask("GET", f"/v1/models/{MODEL}").json == model
    assert pair.ask("GET", "/version").json == {"version": "1.2.3"}
    assert pair.ask("GET", "/health").status == pair.ask("GET", "/ready").status == 200
    rows = pair.ask("GET", "/admin/topology").json["processes"]
    assert [(row["name"], row["role"], row["state"]) for row in rows] == [
        ("proxy", "proxy", "READY"),
        ("prefill:0", "prefill", "READY"),
        ("decode:0", "decode", "READY"),
    ]
    metrics = pair.ask("GET", "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    for name in (
        "handoffs_total",
        "kv_transfer_bytes_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count",
        "num_requests_running",
    ):
        assert f"\npontil_{name}" in metrics.body.decode()


def test_metrics_count_what_was_billed(bare: ScriptedSite) -> None:
    bare.pair()
    usages = [bare.complete(max_tokens=count).json["usage"] for count in (1, 5)]
    assert bare.value("pontil_prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert bare.value("pontil_generation_tokens_total") == 6
    assert bare.value("pontil_request_success_total", finished_reason="length") == 2
    assert bare.value("pontil_counts_disputed_total") == bare.value("pontil_counts_clamped_total") == 0


def test_one_connection_serves_many_requests(pair: ScriptedSite) -> None:
    connection = pair.connect()
    for stream in (True, False, True):
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 2, "stream": stream}))
        response = connection.getresponse()
        assert response.status == 200 and response.read()
    connection.close()
