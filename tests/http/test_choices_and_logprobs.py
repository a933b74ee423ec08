# SPDX-License-Identifier: Apache-2.0
"""Several choices, logprobs and echoed prompts, streamed and whole, as received by clients."""

from typing import Any

import openai
import pytest
from scripted_site import MODEL, HttpAnswer, ScriptedSite

TEXT = "Hello 😀 world"
ASK = ["complete", "chat"]


def gathered(answer: HttpAnswer) -> dict[int, dict[str, Any]]:
    """Merge a stream's choices: text, finish reason, and logprobs by field."""
    made: dict[int, dict[str, Any]] = {}
    for event in answer.events[:-1]:
        for choice in event["choices"]:
            one = made.setdefault(choice["index"], {"text": "", "reason": None, "logprobs": {}})
            assert one["reason"] is None, "nothing comes after the end of a choice"
            one["text"] += choice.get("text", "") + (choice.get("delta", {}).get("content") or "")
            one["reason"] = choice["finish_reason"]
            for name, values in (choice["logprobs"] or {}).items():
                assert values is not None or name == "refusal"
                one["logprobs"][name] = None if values is None else one["logprobs"].get(name, []) + values
    return made


def whole(answer: HttpAnswer) -> dict[int, dict[str, Any]]:
    return {
        choice["index"]: {
            "text": choice["text"] if "text" in choice else choice["message"]["content"],
            "reason": choice["finish_reason"],
            "logprobs": choice["logprobs"] or {},
        }
        for choice in answer.json["choices"]
    }


@pytest.mark.parametrize("ask", ASK)
def test_choices_come_whole_and_streamed(pair: ScriptedSite, ask: str) -> None:
    one = getattr(pair, ask)(n=3, max_tokens=13)
    assert whole(one) == gathered(getattr(pair, ask)(n=3, max_tokens=13, stream=True))
    assert {index: choice["text"] for index, choice in whole(one).items()} == {
        0: TEXT[:-1], 1: TEXT[1:], 2: TEXT[2:],
    }  # fmt: skip
    assert [choice["reason"] for choice in whole(one).values()] == ["length", "length", "stop"]
    assert one.json["usage"]["completion_tokens"] == 39


def test_choices_of_several_prompts_are_numbered_through(pair: ScriptedSite) -> None:
    answer = pair.complete(["a", "b"], n=2, max_tokens=5)
    texts = [choice["text"] for choice in sorted(answer.json["choices"], key=lambda choice: choice["index"])]
    assert texts == [TEXT[:5], TEXT[1:6]] * 2
    streamed = gathered(pair.complete(["a", "b"], n=2, max_tokens=5, stream=True))
    assert [streamed[index]["text"] for index in range(4)] == texts


def test_more_choices_than_seats_are_refused(pair: ScriptedSite) -> None:
    answer = pair.complete(n=9)
    assert answer.status == 400 and answer.json["error"]["param"] == "n"


def test_more_choices_than_are_ever_let_in_are_refused(pair: ScriptedSite) -> None:
    """Two workers with eight slots each allow 64 at once. A retry would not help, so the status is not 503."""
    assert pair.complete(["a"] * 8, n=8, max_tokens=1).status == 200
    answer = pair.complete(["a"] * 13, n=5, max_tokens=1)
    assert answer.status == 400 and answer.json["error"]["param"] == "prompt" and pair.proxy.idle


@pytest.mark.parametrize(
    ("ask", "fields"), [("complete", {"logprobs": 2}), ("chat", {"logprobs": True, "top_logprobs": 2})]
)
def test_logprobs_are_the_same_whole_and_streamed(pair: ScriptedSite, ask: str, fields: dict[str, Any]) -> None:
    fields = fields | {"n": 2, "max_tokens": 15}
    one = whole(getattr(pair, ask)(**fields))
    assert one == gathered(getattr(pair, ask)(stream=True, **fields))
    ids = {
        index: getattr(pair, ask)(return_token_ids=True, **fields).json["choices"][index]["token_ids"] for index in one
    }
    for index, choice in one.items():
        counted = choice["logprobs"].get("content") or choice["logprobs"]["tokens"]
        assert len(counted) == len(ids[index])


def test_a_chats_logprobs_say_token_and_bytes(pair: ScriptedSite) -> None:
    (choice,) = pair.chat(logprobs=True, top_logprobs=1, max_tokens=8).json["choices"]
    content = choice["logprobs"]["content"]
    assert [entry["token"] for entry in content[:3]] == list("Hel")
    assert content[7]["bytes"] == [0xF0] or len(content[7]["bytes"]) < 4, "a part of a character"
    assert {entry["logprob"] for entry in content} == {-1.5}
    assert [len(entry["top_logprobs"]) for entry in content] == [1] * 8
    assert bytes(byte for entry in content for byte in entry["bytes"]).startswith(b"Hello ")


def test_a_completions_offsets_point_into_its_text(pair: ScriptedSite) -> None:
    (choice,) = pair.complete(logprobs=0, max_tokens=40).json["choices"]
    shown = choice["logprobs"]
    *places, end = zip(shown["text_offset"], shown["tokens"], strict=True)
    assert all(choice["text"][place:].startswith(token) for place, token in places if "bytes:" not in token)
    assert end == (len(TEXT), "<|im_end|>")
    assert len(shown["tokens"]) == len(shown["token_logprobs"]) == len(shown["top_logprobs"]) == 15


def test_an_echoed_prompt_comes_first_with_its_logprobs(bare: ScriptedSite) -> None:
    """One worker serves both parts: two scripted ones do not wait for each other as real ones do."""
    bare.worker()
    fields = {"echo": True, "logprobs": 1, "max_tokens": 3, "n": 2}
    one = whole(bare.complete("Say hi: ", **fields))
    assert one == gathered(bare.complete("Say hi: ", stream=True, **fields))
    assert [choice["text"] for choice in one.values()] == ["Say hi: " + TEXT[:3], "Say hi: " + TEXT[1:4]]
    logprobs = one[0]["logprobs"]["token_logprobs"]
    assert logprobs[0] is None and set(logprobs[1:]) == {-1.5}
    assert len(logprobs) == len(bare.tokenizer.encode("Say hi: ", True)) + 3
    assert one[0]["logprobs"]["text_offset"][-3:] == [8, 9, 10]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_scored_without_an_answer(pair: ScriptedSite, stream: bool) -> None:
    fields: dict[str, Any] = {"echo": True, "logprobs": 0, "n": 2, "stream": stream}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = pair.complete(["Say hi: ", "Now"], max_tokens=0, **fields, **options)
    choices = gathered(answer) if stream else whole(answer)
    assert [choices[index]["text"] for index in range(4)] == ["Say hi: "] * 2 + ["Now"] * 2
    longer = pair.complete(["Say hi: ", "Now"], max_tokens=1, **fields)
    for index, other in (gathered(longer) if stream else whole(longer)).items():
        assert choices[index]["reason"] == "length"
        expected = {name: values[:-1] for name, values in other["logprobs"].items()}
        assert choices[index]["logprobs"] == expected and expected["token_logprobs"][0] is None
    usage = answer.events[-2]["usage"] if stream else answer.json["usage"]
    assert usage["completion_tokens"] == 0 and usage["prompt_tokens"] == usage["total_tokens"] > 0


def test_a_budget_of_nothing_is_for_questions_about_the_prompt(pair: ScriptedSite) -> None:
    (choice,) = pair.complete([5, 6], max_tokens=0, prompt_logprobs=0).json["choices"]
    assert choice["text"] == "" and list(choice["prompt_logprobs"][1]) == ["6"]
    assert pair.complete([5, 6], max_tokens=0, echo=True).json["choices"][0]["logprobs"] is None
    assert pair.complete(max_tokens=0).json["error"]["param"] == "max_tokens"
    assert pair.chat(max_tokens=0, prompt_logprobs=0).json["error"]["param"] == "max_tokens"
    named = pair.complete(max_tokens=0, echo=True, logprobs=0, logprob_token_ids=[3])
    assert named.json["error"]["param"] == "logprob_token_ids"


def test_an_echo_without_logprobs_is_text_only(pair: ScriptedSite) -> None:
    (choice,) = pair.complete("Say hi: ", echo=True, max_tokens=3).json["choices"]
    assert choice["text"] == "Say hi: Hel" and choice["logprobs"] is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_an_echo_is_the_prompt_with_its_special_tokens(pair: ScriptedSite, stream: bool, skip: bool) -> None:
    prompt = "<|im_start|>user\nhi é<|im_end|>\n"
    for sent in (prompt, pair.tokenizer.encode(prompt, False)):
        answer = pair.complete(sent, echo=True, logprobs=0, max_tokens=3, stream=stream, skip_special_tokens=skip)
        (choice,) = (gathered(answer) if stream else whole(answer)).values()
        assert choice["text"] == f"{prompt}Hel"
        places = zip(choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"], strict=True)
        assert all(choice["text"][place:].startswith(token) for place, token in places if "bytes:" not in token)


def test_prompt_logprobs_stand_apart(pair: ScriptedSite) -> None:
    answer = pair.complete([5, 6, 7], prompt_logprobs=0, max_tokens=1)
    (choice,) = answer.json["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None and [list(one) for one in others] == [["6"], ["7"]]
    assert others[0]["6"]["logprob"] == -1.5 and choice["logprobs"] is None
    assert pair.complete(prompt_logprobs=0, stream=True).status == 400


def test_a_salt_reaches_the_workers(bare: ScriptedSite) -> None:
    worker = bare.worker()
    bare.complete(cache_salt="tenant", max_tokens=1)
    bare.complete(max_tokens=1)
    assert [worker.submits.get(timeout=60).cache_salt for _ in range(2)] == ["tenant", ""]
    assert bare.complete(cache_salt="").json["error"]["param"] == "cache_salt"


def test_the_official_client_reads_choices_and_logprobs(pair: ScriptedSite) -> None:
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{pair.port}/v1", api_key="unused", max_retries=0)
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], n=2, logprobs=True, top_logprobs=3, max_tokens=4
    )
    assert [choice.message.content for choice in answer.choices] == [TEXT[:4], TEXT[1:5]]
    for choice in answer.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert [len(entry.top_logprobs) for entry in choice.logprobs.content] == [3] * 4
    completion = client.completions.create(model=MODEL, prompt="hi", logprobs=2, echo=True, max_tokens=4)
    shown = completion.choices[0].logprobs
    assert shown is not None and shown.tokens is not None and "".join(shown.tokens) == completion.choices[0].text
