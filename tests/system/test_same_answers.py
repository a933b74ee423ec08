# SPDX-License-Identifier: Apache-2.0
"""Promise 1 on the real model: one prefill and one decode worker answer as one worker does, token for token."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from served import Served, launched, wait_for

STORY = "The old lighthouse keeper climbed the stairs every night, and every night the sea told him a little more. "
CODE = "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +"
NUMBERS = [1000 + 13 * i for i in range(1, 700)]
CHAT = [
    {"role": "system", "content": "You are a terse assistant."},
    {"role": "user", "content": "Name three colours."},
]

# name -> (prompt, further options). Token-id prompts sit exactly around block boundaries.
PROMPTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "one token": ([504], {"max_tokens": 24}),
    "block - 1": (NUMBERS[:15], {"max_tokens": 24}),
    "block": (NUMBERS[:16], {"max_tokens": 24}),
    "block + 1": (NUMBERS[:17], {"max_tokens": 24}),
    "400 tokens": (NUMBERS[:400], {"max_tokens": 24}),
    "one tile": (NUMBERS[:256], {"max_tokens": 16}),
    "emoji": ("🎉🚀 Congratulations 👩‍🚀! Reply with emoji: 😀", {"max_tokens": 24}),
    "code": (CODE, {"max_tokens": 40}),
    "200 generated": (STORY, {"max_tokens": 200, "ignore_eos": True}),
    "drawn": (STORY, {"max_tokens": 60, "temperature": 0.9, "top_p": 0.95, "seed": 11, "ignore_eos": True}),
    "stop string": (STORY, {"max_tokens": 60, "stop": [" the", ". "]}),
    "chat": (CHAT, {"max_tokens": 48}),
}


def ask(served: Served, name: str, stream: bool) -> dict[str, Any]:
    """The answer in one form, however it came: token ids, text, finish reason, usage."""
    prompt, options = PROMPTS[name]
    chat = name == "chat"
    path, field = ("/v1/chat/completions", "messages") if chat else ("/v1/completions", "prompt")
    body = {"model": "smollm2-135m-instruct", field: prompt, "temperature": 0, "return_token_ids": True} | options
    if not stream:
        reply = served.request("POST", path, body)
        answer = reply.json()
        assert reply.status == 200, answer
        choice = answer["choices"][0]
        text = choice["message"]["content"] if chat else choice["text"]
        return {
            "ids": choice["token_ids"],
            "text": text,
            "finish": choice["finish_reason"],
            "usage": answer["usage"],
        }
    events = served.stream(path, body)
    choices = [choice for event in events for choice in event["choices"]]
    pieces = [choice["delta"].get("content") or "" if chat else choice["text"] for choice in choices]
    return {
        "ids": [token for choice in choices for token in choice.get("token_ids") or []],
        "text": "".join(pieces),
        "finish": next(choice["finish_reason"] for choice in choices if choice["finish_reason"]),
        "usage": events[-1]["usage"],
    }


def answers(served: Served) -> dict[str, dict[str, Any]]:
    """Every prompt, asked in four ways that must agree among themselves."""
    whole = {name: ask(served, name, stream=False) for name in PROMPTS}
    assert {name: ask(served, name, stream=True) for name in PROMPTS} == whole
    for stream in (False, True):  # 8 at a time: alone or with seven neighbours makes no difference
        with ThreadPoolExecutor(8) as threads:
            crowd = threads.map(lambda name, stream=stream: ask(served, name, stream), PROMPTS)
            assert dict(zip(PROMPTS, crowd, strict=True)) == whole
    return whole


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    with launched(tmp_path_factory.mktemp("mixed"), "--role", "mixed") as served:
        found = answers(served)
        assert served.metric("pontil_kv_transfer_bytes_total") == 0
        return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, mixed: dict[str, Any]) -> Any:
    """After `mixed` is over: two workers need both cores."""
    with launched(tmp_path_factory.mktemp("pair")) as served:
        yield served


def test_the_answers_are_those_of_one_worker(pair: Served, mixed: dict[str, dict[str, Any]]) -> None:
    found = answers(pair)
    for name in PROMPTS:
        assert found[name] == mixed[name], name


@pytest.mark.parametrize("name", PROMPTS)
def test_usage_is_the_number_of_token_ids(mixed: dict[str, dict[str, Any]], name: str) -> None:  # A8
    answer = mixed[name]
    usage = answer["usage"]
    assert usage["completion_tokens"] == len(answer["ids"]) <= PROMPTS[name][1]["max_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    if isinstance(PROMPTS[name][0][0], int):
        assert usage["prompt_tokens"] == len(PROMPTS[name][0])
    assert answer["finish"] in ("stop", "length")
    assert answer["finish"] == "length" or usage["completion_tokens"] < PROMPTS[name][1]["max_tokens"] + 1


def test_the_model_knows_paris(pair: Served) -> None:
    answer = pair.complete("The capital of France is", max_tokens=5)
    assert answer["choices"][0]["text"].startswith(" Paris")


def test_a_long_prompt_moves_bytes_and_counts_one_handoff(pair: Served, tmp_path: Path) -> None:
    counted = 'pontil_handoffs_total{result="complete"}'
    before = wait_for_rest(pair, counted)
    moved = pair.metric("pontil_kv_transfer_bytes_total")
    reply = pair.request(
        "POST", "/v1/completions", {"model": "smollm2-135m-instruct", "prompt": NUMBERS[:600], "max_tokens": 4}
    )
    assert reply.header("x-pontil-route") == "prefill:0>decode:0"
    assert reply.json()["usage"]["prompt_tokens"] == 600
    wait_for(lambda: pair.metric(counted) == before + 1, 5, "the count of the handoff")
    # 600 tokens are 38 blocks of 16; a token's KV is 30 layers x 2 x 3 heads x 64 x 2 bytes.
    assert pair.metric("pontil_kv_transfer_bytes_total") - moved == 38 * 16 * 30 * 2 * 3 * 64 * 2


def wait_for_rest(served: Served, name: str) -> float:
    """The metric's value once two readings, a heartbeat apart, agree."""
    seen: list[float] = []

    def settled() -> bool:
        seen.append(served.metric(name))
        return len(seen) > 60 and len(set(seen[-60:])) == 1

    wait_for(settled, 60, "a quiet metric")
    return seen[-1]
