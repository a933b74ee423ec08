# SPDX-License-Identifier: Apache-2.0
"""Structured output of real workers and a real model: the documented example, every form, and hundreds of outputs."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from effort import examples
from forked_program import run_program
from served import ROOT, Served

NAME = "smollm2-135m-instruct"
TEXT = {"type": "string", "maxLength": 24}
BOUNDED = {
    "type": "object",
    "properties": {
        "name": TEXT, "mood": {"enum": ["good", "bad", "so so"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": TEXT, "maxItems": 3},
        "home": {"type": "object", "properties": {"city": TEXT}, "required": ["city"], "additionalProperties": False},
    },
    "required": ["name", "mood", "age", "tags", "home"],
    "additionalProperties": False,
}  # fmt: skip
SHORT_RUNS, LONG_RUNS = 6, 200


@pytest.fixture
def served(pair: Served) -> Served:
    return pair


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", max_retries=0, timeout=300)


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("structured-output", "'country': 'France'"),
        ("tools", "get_time {'city': "),
        ("responses", "an answer to ['user', 'assistant', 'user']"),
    ],
)
def test_the_documented_example_runs(served: Served, tmp_path: Any, page: str, printed: str) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide" / f"{page}.md").read_text(), re.DOTALL)
    assert "127.0.0.1:8000" in example
    script = tmp_path / "example.py"
    script.write_text(example.replace("127.0.0.1:8000", f"127.0.0.1:{served.port}"))
    done = run_program([str(script)], timeout=300)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


def ask(client: openai.OpenAI, seed: int, **more: Any) -> tuple[str, str]:
    answer = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": f"Describe person {seed} in JSON."}], seed=seed,
        **({"max_tokens": 200} | more),
    )  # fmt: skip
    (choice,) = answer.choices
    return str(choice.message.content), choice.finish_reason


def bounded_runs(client: openai.OpenAI, runs: int) -> None:
    """Check that every output that ends by itself parses and validates, and that every truncated one is a valid
    prefix."""
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": BOUNDED, "strict": True}}
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda seed: ask(client, seed, response_format=wanted), range(runs)))
    for text, reason in told:
        assert reason in ("stop", "length")
        if reason == "stop":
            jsonschema.validate(json.loads(text), BOUNDED)
    ended = sum(reason == "stop" for _, reason in told)
    assert ended > runs * 0.8, f"{ended} of {runs}"


def test_a_few_answers_follow_a_schema(client: openai.OpenAI) -> None:
    bounded_runs(client, SHORT_RUNS)


@pytest.mark.long
def test_two_hundred_answers_follow_a_schema(client: openai.OpenAI) -> None:
    bounded_runs(client, LONG_RUNS)


@pytest.mark.parametrize(
    ("structure", "form"),
    [
        ({"choice": ["good", "bad"]}, "good|bad"),
        ({"regex": "[A-Z][a-z]{2,8} [0-9]{2}"}, "[A-Z][a-z]{2,8} [0-9]{2}"),
        ({"grammar": 'start: "<" /[a-z]+/ ">"'}, "<[a-z]+>"),
        ({"grammar": 'root ::= "no" "!"+'}, "no!+"),
    ],
)
def test_every_form_by_the_official_client(client: openai.OpenAI, structure: dict[str, Any], form: str) -> None:
    for seed in range(examples(2, 3)):
        text, reason = ask(client, seed, extra_body={"structured_outputs": structure}, max_tokens=40)
        assert reason == "length" or re.fullmatch(form, text), text


def test_a_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": NAME, "messages": [{"role": "user", "content": "Name a city in JSON."}], "seed": 5, "n": 2,
        "max_tokens": examples(30, 80), "response_format": {"type": "json_object"}, "logprobs": True,
    }  # fmt: skip
    whole = client.chat.completions.create(**asked)
    texts = ["", ""]
    for chunk in client.chat.completions.create(stream=True, **asked):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices] and all(text.startswith("{") for text in texts)


CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
PERSON: dict[str, Any] = {"type": "function", "function": {"name": "save_person", "parameters": BOUNDED}}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time", "parameters": CITY}}
PARAMETERS = {"save_person": BOUNDED, "get_time": CITY}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_time"}}], ids=["required", "named"]
)
def test_calls_that_are_asked_for_are_made(client: openai.OpenAI, choice: Any) -> None:
    """The model's template knows no tools; calls are the same whole and streamed."""
    for seed in range(examples(1, 3)):
        asked: dict[str, Any] = {
            "model": NAME, "messages": [{"role": "user", "content": "What time is it in Paris?"}], "seed": seed,
            "tools": [PERSON, TIME], "tool_choice": choice, "max_tokens": 300, "parallel_tool_calls": False,
        }  # fmt: skip
        (whole,) = client.chat.completions.create(**asked).choices
        assert whole.finish_reason == "tool_calls" and whole.message.content is None
        (call,) = whole.message.tool_calls
        assert choice == "required" or call.function.name == "get_time"
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS[call.function.name])
        name, arguments, reasons = "", "", []
        for chunk in client.chat.completions.create(stream=True, **asked):
            for piece in chunk.choices[0].delta.tool_calls or ():
                name += piece.function.name or ""
                arguments += piece.function.arguments
            reasons.append(chunk.choices[0].finish_reason)
        assert (name, arguments, reasons[-1]) == (call.function.name, call.function.arguments, "tool_calls")


def test_a_conversation_goes_on_behind_a_call(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "What time is it in Rome?"}]
    asked: dict[str, Any] = {"model": NAME, "tools": [TIME], "temperature": 0, "max_tokens": 60}
    choice: Any = {"type": "function", "function": {"name": "get_time"}}
    message = client.chat.completions.create(messages=messages, tool_choice=choice, **asked).choices[0].message
    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "10:30"}]
    answer = client.chat.completions.create(messages=messages, tool_choice="none", **asked)
    assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls


def test_mistakes_are_the_clients_own_errors(client: openai.OpenAI) -> None:
    bad = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "thing"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, 1, response_format=bad)
    assert caught.value.param == "response_format.json_schema.schema"
    with pytest.raises(openai.BadRequestError, match="structured_outputs.json"):
        ask(client, 1, extra_body={"guided_json": {"type": "object"}})
    with pytest.raises(openai.BadRequestError, match="bad_token_ids"):
        ask(client, 1, extra_body={"structured_outputs": {"choice": ["a"]}, "allowed_token_ids": [0]})
