# SPDX-License-Identifier: Apache-2.0
"""Promise 1 on the real model: one prefill and one decode worker give the response of one worker, token for token."""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from effort import examples, is_long
from oracle import steady
from served import Served, launched, wait_for

STORY = "The old lighthouse keeper climbed the stairs every night, and every night the sea told him a little more. "
CODE = "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +"
NUMBERS = [1000 + 13 * i for i in range(1, 700)]
CHAT = [
    {"role": "system", "content": "You are a terse assistant."},
    {"role": "user", "content": "Name three colours."},
]
BEGUN = [*CHAT, {"role": "assistant", "content": "Red,"}]

PERSON = {
    "type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"], "additionalProperties": False,
}  # fmt: skip

# Map from name to (prompt, further options). Token-id prompts have lengths around block boundaries.
ALL: dict[str, tuple[Any, dict[str, Any]]] = {
    "one token": ([504], {"max_tokens": 18}),
    "block - 1": (NUMBERS[:15], {"max_tokens": 18}),
    "block": (NUMBERS[:16], {"max_tokens": 18}),
    "block + 1": (NUMBERS[:17], {"max_tokens": 18}),
    "400 tokens": (NUMBERS[:400], {"max_tokens": 18}),
    "one tile": (NUMBERS[:256], {"max_tokens": 16}),
    "emoji": ("🎉🚀 Congratulations 👩‍🚀! Reply with emoji: 😀", {"max_tokens": 18}),
    "code": (CODE, {"max_tokens": 20}),
    "many generated": (STORY, {"max_tokens": examples(60, 150), "ignore_eos": True}),
    "drawn": (STORY, {"max_tokens": 30, "temperature": 0.9, "top_p": 0.95, "seed": 11, "ignore_eos": True}),
    "stop string": (STORY, {"max_tokens": 60, "stop": [" the", ". "]}),
    "chat": (CHAT, {"max_tokens": 20}),
    "three choices": (STORY, {"max_tokens": 18, "n": 3, "temperature": 0.9, "seed": 7}),
    "structured": (STORY, {
        "max_tokens": 60, "temperature": 0.9, "seed": 4, "n": 2, "logprobs": 0, "structured_outputs": {"json": PERSON},
    }),
    "one of a few": (STORY, {"max_tokens": 9, "structured_outputs": {"choice": ["storm", "sea", "stairs"]}}),
    "function call": (CHAT, {
        "max_tokens": 40, "functions": [{"name": "save", "parameters": PERSON}], "function_call": {"name": "save"},
    }),
    "closed object": (STORY, {
        "max_tokens": 30, "temperature": 1.0, "seed": 2, "n": 2, "response_format": {"type": "json_object"},
    }),
    "regex": (STORY, {"max_tokens": 12, "temperature": 1.0, "seed": 5, "regex": "([A-Z][a-z]{2,8} )+[0-9]{2}"}),
    "ebnf": (STORY, {"max_tokens": 12, "temperature": 1.0, "seed": 6, "ebnf": 'root ::= ("<" [a-z]+ ">")+'}),
    "structural tag": (STORY, {
        "max_tokens": 24, "temperature": 1.0, "seed": 7, "n": 2, "response_format": {
            "type": "structural_tag", "triggers": ["e"], "structures": [{"begin": "e", "schema": PERSON, "end": "!"}],
        },
    }),
    "nested format": (STORY, {
        "max_tokens": 24, "temperature": 1.0, "seed": 8,
        "response_format": {"type": "structural_tag", "format": {"type": "sequence", "elements": [
            {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": "e"},
            {"type": "or", "elements": [{"type": "const_string", "value": text} for text in "!?"]},
            {"type": "json_schema", "json_schema": PERSON},
        ]}},
    }),
    "echoed chat": (BEGUN, {
        "max_tokens": 12, "echo": True, "add_generation_prompt": False, "continue_final_message": True,
    }),
    "named tokens": (STORY, {"max_tokens": 12, "logprobs": 0, "logprob_token_ids": [504, 29, 9]}),
    "no answer": (STORY, {"max_tokens": 0, "echo": True}),
    "everything": (STORY, {
        "max_tokens": 24, "temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.02, "presence_penalty": 0.5,
        "frequency_penalty": 0.3, "repetition_penalty": 1.1, "logit_bias": {"504": 2.5}, "bad_token_ids": [284],
        "min_tokens": 20, "seed": 3, "n": 2, "logprobs": 2, "stop": ["the"],
    }),
}  # fmt: skip

# Left to --long: lengths that tests of the engine have too, and grammars, which tests/runtime/worker/test_grammars.py
# asks of a pair and of one worker of a tiny model, and test_structured.py of the real pair.
MORE = (
    "block - 1", "block + 1", "structured", "closed object", "regex", "ebnf", "structural tag", "nested format",
    "echoed chat",
)  # fmt: skip
PROMPTS = {name: asked for name, asked in ALL.items() if is_long() or name not in MORE}
# Prompts that every run asks alone too, whole and then with a warm cache; each other one takes a second or more.
SOME = ("one token", "block", "three choices", "one of a few")
ALONE = PROMPTS if is_long() else SOME


def ask(served: Served, name: str, stream: bool, salt: str) -> dict[str, Any]:
    """Return the response in one form, whole or streamed: each choice (ids, text, finish reason, logprobs), and
    usage."""
    prompt, options = PROMPTS[name]
    chat = prompt in (CHAT, BEGUN)
    path, field = ("/v1/chat/completions", "messages") if chat else ("/v1/completions", "prompt")
    asked = {"model": "smollm2-135m-instruct", field: prompt, "temperature": 0, "return_token_ids": True}
    body = asked | {"cache_salt": salt} | options
    if stream:
        events = served.stream(path, body)
        pieces, usage = [choice for event in events for choice in event["choices"]], events[-1]["usage"]
    else:
        reply = served.request("POST", path, body)
        answer = reply.json()
        assert reply.status == 200, answer
        pieces, usage = answer["choices"], answer["usage"]
    return {"choices": gathered(pieces), "usage": usage}


def gathered(pieces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the pieces of a response into its choices."""
    choices: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        made = choices.setdefault(piece["index"], {"ids": [], "text": "", "finish": None, "logprobs": [], "top": []})
        said = piece.get("message") or piece.get("delta") or {"content": piece.get("text")}
        made["ids"] += piece.get("token_ids") or []
        made["text"] += said.get("content") or said.get("function_call", {}).get("arguments") or ""
        made["finish"] = piece["finish_reason"]
        made["logprobs"] += (piece["logprobs"] or {}).get("token_logprobs", [])
        made["top"] += (piece["logprobs"] or {}).get("top_logprobs", [])
    return [choices[index] for index in sorted(choices)]


def answers(served: Served) -> dict[str, dict[str, Any]]:
    """Send every prompt in ways that must agree: streamed in a batch with seven others, and those of `ALONE` whole, one
    at a time. Then these in a batch with a warm cache, where only the count of cached tokens may differ (C16)."""
    found = crowd(served, True, " crowd", PROMPTS)
    for name in ALONE:
        assert ask(served, name, False, name) == found[name], name
    for name, again in crowd(served, False, "", ALONE).items():
        assert again["choices"] == found[name]["choices"], name
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == again["usage"]["prompt_tokens"] - 1
    return found


def crowd(served: Served, stream: bool, salt: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    with ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda name: ask(served, name, stream, name + salt), names)
        return dict(zip(names, found, strict=True))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    with launched(tmp_path_factory.mktemp("mixed"), "--role", "mixed", "--mixed", "cpu:0") as served:
        found = answers(served)
        assert served.metric("pontil_kv_transfer_bytes_total") == 0
        return found


def test_the_answers_are_those_of_one_worker(pair: Served, mixed: dict[str, dict[str, Any]]) -> None:
    found = answers(pair)
    for name in PROMPTS:
        assert found[name] == mixed[name], name


@pytest.mark.long
def test_the_answers_are_those_with_a_draft_model(tmp_path: Path, mixed: dict[str, dict[str, Any]]) -> None:  # B1, C16
    """The model itself guesses: always right, and never worth its cost, so what is seen are the tries."""
    with launched(tmp_path, "--speculative-model", "smollm2-135m-instruct", "--speculative-tokens", "4") as served:
        found = answers(served)
        assert served.metric('pontil_spec_decode_num_accepted_tokens_total{worker="decode:0"}') > 0
    for name in PROMPTS:
        assert found[name] == mixed[name], name


@pytest.mark.parametrize("name", PROMPTS)
def test_usage_is_the_number_of_token_ids(mixed: dict[str, dict[str, Any]], name: str) -> None:  # A8
    answer, (prompt, options) = mixed[name], PROMPTS[name]
    usage = answer["usage"]
    assert len(answer["choices"]) == options.get("n", 1)
    assert usage["completion_tokens"] == sum(len(choice["ids"]) for choice in answer["choices"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    if isinstance(prompt[0], int):
        assert usage["prompt_tokens"] == len(prompt)
    for choice in answer["choices"]:
        assert min(options["max_tokens"], options.get("min_tokens", 1)) <= len(choice["ids"]) <= options["max_tokens"]
        assert choice["finish"] in ("stop", "length", "function_call")
        closed = name in ("structured", "closed object") and json.loads(choice["text"]) is not None
        assert choice["finish"] != "length" or len(choice["ids"]) == options["max_tokens"] or closed
        assert len(choice["logprobs"]) == (len(choice["ids"]) if "logprobs" in options else 0)


def test_every_parameter_is_obeyed(mixed: dict[str, dict[str, Any]]) -> None:
    first, second = mixed["everything"]["choices"]
    assert first["ids"] != second["ids"] and not {284} & {*first["ids"], *second["ids"]}


def test_a_response_is_the_answer_of_a_chat(pair: Served) -> None:  # A8
    body = {"model": "smollm2-135m-instruct", "temperature": 0}
    chat = pair.request("POST", "/v1/chat/completions", body | {"messages": CHAT, "max_tokens": 20}).json()
    response = pair.request("POST", "/v1/responses", body | {"input": CHAT, "max_output_tokens": 20}).json()
    assert response["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    counts = [response["usage"][name] for name in ("input_tokens", "output_tokens", "total_tokens")]
    assert counts == [chat["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]


def test_the_model_knows_paris(pair: Served) -> None:
    answer = pair.complete("The capital of France is", max_tokens=5)
    assert answer["choices"][0]["text"].startswith(" Paris")


def test_a_long_prompt_moves_bytes_and_counts_one_handoff(pair: Served, tmp_path: Path) -> None:
    counted = 'pontil_handoffs_total{result="complete"}'
    before = steady(lambda: pair.metric(counted), "a quiet metric")
    moved = pair.metric("pontil_kv_transfer_bytes_total")
    body = {"model": "smollm2-135m-instruct", "prompt": NUMBERS[:600], "max_tokens": 4, "cache_salt": "long"}
    reply = pair.request("POST", "/v1/completions", body)
    assert reply.header("x-pontil-route") == "prefill:0>decode:0"
    assert reply.json()["usage"]["prompt_tokens"] == 600
    wait_for(lambda: pair.metric(counted) == before + 1, 60, "the count of the handoff")
    # 600 tokens are 38 blocks of 16; a token's KV is 30 layers x 2 x 3 heads x 64 x 2 bytes.
    assert pair.metric("pontil_kv_transfer_bytes_total") - moved == 38 * 16 * 30 * 2 * 3 * 64 * 2
