# SPDX-License-Identifier: Apache-2.0
"""Checks of Ollama's API, which a server may lack. They are after faults that servers had: events or comments between
lines, ends without counts, arguments as text, streams that are not asked for and do not come."""

import json
from typing import Any

from pontil.launcher.tools.conformance.api import MOST_SHOWN, Api, ApiAnswer, PartRefused, expect
from pontil.launcher.tools.conformance.check import Check, topic

CHECKS: list[Check] = []
ollama = topic("Ollama", CHECKS)

ABSENT = (404, 405, 501)
PATH, GENERATE = "/api/chat", "/api/generate"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Of a city.", "parameters": PARAMETERS}}
COUNTS = ("total_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")
SHORT = {"temperature": 0, "num_predict": 8}


def ask(api: Api, path: str = PATH, **body: Any) -> ApiAnswer:
    """Ask for an answer: greedy and short unless the body differs. Raises PartRefused where there is no such path."""
    asked: dict[str, Any] = {"prompt": "Count to ten."}
    if path == PATH:
        asked = {"messages": [{"role": "user", "content": "Count to ten."}]}
    answer = api.post(path, {**asked, "options": SHORT, **body})
    if answer.status in ABSENT and api.get("/api/version").status in ABSENT:
        raise PartRefused(f"there is nothing at {path}")
    return answer


def whole(api: Api, path: str = PATH, **body: Any) -> dict[str, Any]:
    return ask(api, path, stream=False, **body).good()


def lines(api: Api, path: str = PATH, **body: Any) -> list[dict[str, Any]]:
    """Return the lines of a stream. Raises Difference if one is no JSON object."""
    answer = ask(api, path, **body)
    expect(answer.status == 200, f"expected status 200, not {answer.shown}")
    told = [json.loads(line) for line in answer.data.decode().split("\n") if line]
    expect(told and all(isinstance(line, dict) for line in told), f"no lines of objects: {answer.shown}"[:MOST_SHOWN])
    return told


def check_ended(answer: dict[str, Any]) -> None:
    expect(answer["done"] is True and answer["done_reason"] in ("stop", "length"), f"done {answer.get('done_reason')}")
    missing = [name for name in COUNTS if not isinstance(answer.get(name), int) or answer[name] <= 0]
    expect(not missing, f"no {', '.join(missing)}")
    expect(answer["eval_count"] <= SHORT["num_predict"], f"eval_count {answer['eval_count']}")


@ollama("an answer has model, message, done, done_reason, counts and durations")
def shape(api: Api) -> None:
    answer = whole(api)
    expect(answer["message"]["role"] == "assistant" and isinstance(answer["message"]["content"], str), "no message")
    expect(answer["model"] and answer["created_at"], "no model or time")
    check_ended(answer)


@ollama("an answer is streamed unless that is declined: lines of JSON, the last of which has done and the counts")
def streamed(api: Api) -> None:
    told = lines(api)
    expect(all(line["done"] is False for line in told[:-1]), "a line before the last is done")
    check_ended(told[-1])
    text = "".join(line["message"]["content"] for line in told)
    expect(text == whole(api)["message"]["content"], "another text than the whole answer's")


@ollama("generate answers a prompt, and continues one as it stands where it is raw")
def generated(api: Api) -> None:
    answer, raw = whole(api, GENERATE), whole(api, GENERATE, raw=True)
    check_ended(answer)
    expect(isinstance(answer["response"], str) and "message" not in answer, "no response")
    expect(raw["prompt_eval_count"] < answer["prompt_eval_count"], "the raw prompt has a template")
    text = "".join(line["response"] for line in lines(api, GENERATE))
    expect(text == answer["response"], "another text in the stream")


@ollama("a seed draws the same answer again")
def seeded(api: Api) -> None:
    options = {"seed": 7, "temperature": 1, "num_predict": 8}
    texts = {whole(api, options=options)["message"]["content"] for _ in range(2)}
    expect(len(texts) == 1, "two answers")


@ollama("options.stop ends an answer")
def stopped(api: Api) -> None:
    text = whole(api)["message"]["content"].strip()
    if text:
        options = {**SHORT, "stop": [text[:1]]}
        answer = whole(api, options=options)
        expect(answer["done_reason"] == "stop" and text[:1] not in answer["message"]["content"], "it went on")


@ollama("format holds an answer to a JSON schema")
def structured(api: Api) -> None:
    form = {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}},
        "required": ["yes"],
        "additionalProperties": False,
    }
    answer = whole(api, format=form, options={"temperature": 0, "num_predict": 60})
    value = json.loads(answer["message"]["content"])
    expect(value.keys() == {"yes"} and isinstance(value["yes"], bool), f"content {answer['message']['content']}")


@ollama("calls and their results may be sent back, with arguments as an object and without ids")
def results(api: Api) -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    turns = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Rain.", "tool_name": "get_weather"},
    ]
    answer = whole(api, messages=turns, tools=[TOOL])
    expect(answer["message"]["role"] == "assistant", "no message")
    calls = answer["message"].get("tool_calls") or ()
    expect(all(isinstance(one["function"]["arguments"], dict) for one in calls), "arguments are no object")


@ollama("no messages ask for the model to be loaded")
def loaded(api: Api) -> None:
    answer = ask(api, messages=[]).good()
    expect(answer["done"] is True and answer["done_reason"] == "load", f"done_reason {answer.get('done_reason')}")


@ollama("tags lists the model, show describes it, and a name means the same with the tag latest")
def described(api: Api) -> None:
    ask(api, messages=[])
    listed = api.get("/api/tags").good()["models"]
    expect(listed and all(model["name"] and model["details"] is not None for model in listed), f"models {listed}")
    shown = api.post("/api/show", {"model": listed[0]["name"]}).good()
    expect("completion" in shown["capabilities"] and shown["model_info"]["general.architecture"], "not described")
    if ":" not in api.model:
        expect(whole(api, model=f"{api.model}:latest")["done"] is True, "another name with its tag")


@ollama("a model that is not there is 404, and errors have Ollama's shape")
def wrong(api: Api) -> None:
    for path, status in ((PATH, 404), (GENERATE, 404), ("/api/show", 404)):
        answer = ask(api, path, model="no-such-model")
        expect(answer.status == status, f"expected status {status}, not {answer.shown}")
        expect(isinstance(answer.json().get("error"), str) and answer.json()["error"], f"error {answer.shown}")
    answer = ask(api, messages="hi")
    expect(answer.status == 400 and isinstance(answer.json().get("error"), str), f"error {answer.shown}")
