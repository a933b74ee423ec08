# SPDX-License-Identifier: Apache-2.0
"""Ollama's API over HTTP: the exchange that its clients expect, whole and in lines."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from saying_sites import Sites
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site
from scripted_worker import DEADLINE, ScriptedWorker, silent

from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Failed, Message, Submit

TEXT = "Hello 😀 world"
HI = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": PARAMETERS}}]
ROME, OSLO = '{"city": "Rome"}', '{ "city":"Øslo" }'
CALLS = "\n".join(f'<tool_call>\n{{"name": "weather", "arguments": {said}}}\n</tool_call>' for said in (ROME, OSLO))
THOUGHT = "<think>\nTwo cities.\n</think>\n\n"
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with ExitStack() as stack:
        yield Sites(tmp_path_factory.mktemp("sites"), stack)


def ask(
    served: ScriptedSite, path: str = "/api/chat", headers: dict[str, str] | None = None, **fields: Any
) -> HttpAnswer:
    """Ask for an answer that is not streamed unless the fields differ."""
    asked: dict[str, Any] = {"messages": HI} if path == "/api/chat" else {"prompt": "hi"}
    return served.ask("POST", path, {"model": MODEL, "stream": False} | asked | fields, headers)


def lines_of(answer: HttpAnswer) -> list[dict[str, Any]]:
    assert answer.status == 200 and answer.headers["content-type"] == "application/x-ndjson", answer.body
    assert answer.body.endswith(b"\n")
    return [json.loads(line) for line in answer.body.decode().split("\n")[:-1]]


def joined(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a stream together as the official clients do: texts and calls are added up, and the last line counts."""
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert all("done_reason" not in line for line in lines[:-1])
    parts = [line.get("message", line) for line in lines]
    made: dict[str, Any] = {}
    for name in ("content", "response", "thinking"):
        if any(name in part for part in parts):
            made[name] = "".join(part.get(name, "") for part in parts)
    if calls := [call for part in parts for call in part.get("tool_calls", ())]:
        made["tool_calls"] = calls
    last = {name: value for name, value in lines[-1].items() if name not in ("message", "response")}
    return last | ({"message": {"role": "assistant"} | made} if "message" in lines[-1] else made)


def plain(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without what differs by chance."""
    text = json.dumps({name: value for name, value in answer.items() if name not in (*DURATIONS, "created_at")})
    made: dict[str, Any] = json.loads(text)
    for call in made.get("message", {}).get("tool_calls", ()):
        del call["id"]
    return made


def both(served: ScriptedSite, path: str = "/api/chat", **fields: Any) -> dict[str, Any]:
    """Return the answer, which is the same whole and streamed, and as the document says."""
    whole = ask(served, path, **fields)
    assert whole.status == 200, whole.body
    lines = lines_of(ask(served, path, **fields | {"stream": True}))
    assert plain(joined(lines)) == plain(whole.json)
    document = served.ask("GET", "/openapi.json").json
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    jsonschema.Draft202012Validator(content["application/json"]["schema"]).validate(whole.json)
    item = content["application/x-ndjson"]["itemSchema"] | {"components": document["components"]}
    for line in lines:
        jsonschema.Draft202012Validator(item).validate(line)
    made: dict[str, Any] = whole.json
    return made


def prompt_of(served: ScriptedSite) -> str:
    return served.tokenizer.decode(served.last_submit().prompt, skip_special_tokens=False)


def test_a_text_and_its_counts(pair: ScriptedSite) -> None:
    answer = both(pair)
    assert answer["message"] == {"role": "assistant", "content": TEXT}
    assert (answer["model"], answer["done"], answer["done_reason"]) == (MODEL, True, "stop")
    usage = pair.chat().json["usage"]
    assert (answer["prompt_eval_count"], answer["eval_count"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    durations = [answer[name] for name in DURATIONS if name != "load_duration"]
    assert all(type(one) is int and one > 0 for one in durations) and max(durations) == answer["total_duration"]


def test_a_prompt_and_its_counts(pair: ScriptedSite) -> None:
    answer = both(pair, "/api/generate", system="be brief")
    assert answer["response"] == TEXT and "message" not in answer
    assert answer["prompt_eval_count"] > both(pair, "/api/generate")["prompt_eval_count"]
    raw = both(pair, "/api/generate", raw=True, prompt="a [b")
    assert raw["response"] == TEXT and prompt_of(pair).endswith("a [b")
    assert raw["prompt_eval_count"] == pair.complete("a [b").json["usage"]["prompt_tokens"]


def test_answers_are_streamed_unless_that_is_declined(pair: ScriptedSite) -> None:
    lines = lines_of(ask(pair, stream=None))
    assert len(lines) > 1 and lines[0]["message"]["content"]


def test_thinking_and_calls(sites: Sites) -> None:
    served = sites.saying("qwen", f"{THOUGHT}I look.\n{CALLS}")
    for think in (True, None, "high"):
        message = both(served, tools=TOOLS, think=think)["message"]
        assert (message["thinking"], message["content"]) == ("Two cities.", "I look.")
    calls = message["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == [{"city": "Rome"}, {"city": "Øslo"}]
    assert calls[0]["id"] != calls[1]["id"]
    assert "thinking" not in both(served, tools=TOOLS, think=False)["message"]
    assert prompt_of(served).endswith("<think>\n\n</think>\n\n"), "reasoning is turned off where the template can"
    generated = both(served, "/api/generate", think=True)
    assert generated["thinking"] == "Two cities." and generated["response"].startswith("I look.")


def test_what_comes_back_is_the_conversation(sites: Sites) -> None:
    served = sites.saying("qwen", f"{THOUGHT}I look.\n{CALLS}")
    message = ask(served, tools=TOOLS, think=True).json["message"]
    results = [{"role": "tool", "tool_name": "weather", "content": said} for said in ("7°", "no such city")]
    answer = ask(served, messages=[*HI, message, *results, {"role": "user", "content": "And now?"}], tools=TOOLS)
    assert answer.status == 200 and "x-pontil-ignored" not in answer.headers
    prompt = prompt_of(served)
    assert all(said in prompt for said in ("I look.", ROME, "7°", "no such city", "And now?"))


@pytest.mark.parametrize("most", [1, 12, 50, 110])
def test_an_answer_that_is_cut(sites: Sites, most: int) -> None:
    """A call that was cut is not told: clients run what they get."""
    served = sites.saying("qwen", f"{THOUGHT}{CALLS}")
    answer = both(served, tools=TOOLS, options={"num_predict": most})
    assert answer["done_reason"] == "length" and answer["eval_count"] == most
    calls = answer["message"].get("tool_calls", [])
    assert [call["function"]["arguments"] for call in calls] == ([{"city": "Rome"}] if most == 110 else [])


def test_a_call_is_told_whole_or_not_at_all(sites: Sites) -> None:
    served, told = sites.saying("qwen", CALLS), set()
    for cut in range(30, 64, 3):
        calls = ask(served, tools=TOOLS, options={"num_predict": cut}).json["message"].get("tool_calls", [])
        assert all(call["function"]["arguments"] == {"city": "Rome"} for call in calls)
        told.add(len(calls))
    assert told == {0, 1}


def test_stops_and_more_tokens_than_fit(pair: ScriptedSite) -> None:
    answer = both(pair, options={"stop": ["😀", "x"]})
    assert answer["message"]["content"] == "Hello " and answer["done_reason"] == "stop"
    assert ask(pair, options={"num_predict": 10**6}).json["done_reason"] == "stop"
    assert ask(pair, "/api/generate", raw=True, options={"num_predict": 10**6}).json["done_reason"] == "stop"


def test_logprobs_are_in_the_lines_of_their_tokens(pair: ScriptedSite) -> None:
    whole = ask(pair, logprobs=True, top_logprobs=2).json
    lines = lines_of(ask(pair, logprobs=True, top_logprobs=2, stream=True))
    told = [entry for line in lines for entry in line.get("logprobs", ())]
    assert told == whole["logprobs"] and len(told) == whole["eval_count"] and len(told[0]["top_logprobs"]) == 2
    assert joined([line for line in lines if line.pop("logprobs", 1)])["message"]["content"] == TEXT


def test_a_structured_answer(sites: Sites) -> None:
    served = sites.saying("qwen", '{"city":"Rome"}')
    for form in ("json", PARAMETERS):
        while not served.workers[0].submits.empty():
            served.workers[0].submits.get()
        assert both(served, format=form)["message"]["content"] == '{"city":"Rome"}'
        assert served.workers[0].submits.get(timeout=60).sampling["grammar"]


def test_names_of_the_model(pair: ScriptedSite) -> None:
    assert ask(pair, model=f"{MODEL}:latest").json["model"] == MODEL
    for path in ("/api/chat", "/api/generate", "/api/show"):
        refused = ask(pair, path, model="llama3.2")
        assert refused.status == 404 and refused.json.keys() == {"error"} and "'llama3.2'" in refused.json["error"]
    assert ask(pair, model=f"{MODEL}:1b").status == 404


def test_a_model_is_loaded(pair: ScriptedSite) -> None:
    for path, fields in (("/api/chat", {"messages": []}), ("/api/generate", {"prompt": "", "keep_alive": 0})):
        answer = ask(pair, path, **fields, stream=True)
        assert answer.status == 200 and answer.json["done_reason"] == "load" and answer.json["done"]
    assert answer.headers["x-pontil-ignored"] == "keep_alive" and answer.json["response"] == ""


def test_models_are_described(pair: ScriptedSite) -> None:
    (listed,) = pair.ask("GET", "/api/tags").json["models"]
    (running,) = pair.ask("GET", "/api/ps").json["models"]
    assert listed["name"] == listed["model"] == running["model"] == f"{MODEL}:latest"
    context = pair.ask("GET", "/v1/models").json["data"][0]["max_model_len"]
    for name in ("model", "name"):
        shown = pair.ask("POST", "/api/show", {name: listed["name"]}).json
        assert shown["model_info"][f"{shown['model_info']['general.architecture']}.context_length"] == context
        assert shown["capabilities"] == ["completion", "tools"] and "messages" in shown["template"]
    assert pair.ask("POST", "/api/show", {}).status == 400
    version = pair.ask("GET", "/api/version").json["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4), "VS Code asks for this one"


def test_no_model_runs_without_workers(bare: ScriptedSite) -> None:
    assert bare.ask("GET", "/api/ps").json == {"models": []} and len(bare.ask("GET", "/api/tags").json["models"]) == 1
    answer = ask(bare)
    assert answer.status == 503 and answer.json.keys() == {"error"} and int(answer.headers["retry-after"]) > 0


def test_the_server_says_that_it_runs(pair: ScriptedSite) -> None:
    assert pair.ask("GET", "/").body == b"Ollama is running" and pair.ask("HEAD", "/").status == 200


def test_embeddings_are_refused_without_their_model(pair: ScriptedSite) -> None:
    for path, body in (("/api/embed", {"input": "hi"}), ("/api/embeddings", {"prompt": "hi"})):
        answer = pair.ask("POST", path, body)
        assert answer.status == 404 and "--embed" in answer.json["error"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images are taken by"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "maximum context length"),
        ({"messages": [{"role": "user", "content": [{"type": "wobble"}]}]}, "messages[0].content[0].type"),
        ({"options": {"temperature": 9}}, "options.temperature must be"),
        ({"options": {"mirostat": 2}}, "options.mirostat is not supported"),
        ({"format": {"type": "nothing"}}, "format"),
        ({"tools": TOOLS, "options": {"tool_choice": "other"}}, "options.tool_choice must be"),
        ({"messagess": 1}, "did you mean messages?"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_mistakes_have_ollamas_shape(pair: ScriptedSite, fields: dict[str, Any], says: str) -> None:
    for stream in (False, True):
        answer = ask(pair, **fields | {"stream": stream})
        assert answer.status == 400 and answer.json.keys() == {"error"} and says in answer.json["error"]


def test_refusals_before_the_handler_have_it_too(pair: ScriptedSite) -> None:
    for method, path, body, status in (
        ("GET", "/api/chat", None, 405),
        ("POST", "/api/pull", {"model": "x"}, 404),
        ("DELETE", "/api/delete", {"model": "x"}, 404),
        ("POST", "/api/blobs/sha256:1", b"x", 404),
        ("POST", "/api/nothing", {}, 404),
        ("POST", "/api/chat", b"x" * 100_001, 413),
        ("POST", "/api/chat", b"{", 400),
    ):
        answer = pair.ask(method, path, body)
        assert (answer.status, [*answer.json]) == (status, ["error"]) and isinstance(answer.json["error"], str)
    assert "models are not kept here" in pair.ask("POST", "/api/pull", {}).json["error"]
    assert pair.ask("GET", "/apix").json["error"]["type"]


def test_json_that_curl_calls_a_form(pair: ScriptedSite) -> None:
    """`curl -d` says that its data is a form. A page may send one too, and its browser says where it comes from."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert ask(pair, headers=form).status == 200
    for header in ("origin", "referer", "sec-fetch-site"):
        assert ask(pair, headers=form | {header: "http://elsewhere"}).status == 415
    assert ask(pair, headers={"content-type": "text/plain"}).status == 415
    assert pair.ask("POST", "/v1/chat/completions", {"messages": HI}, form).status == 415


def test_keys_and_their_limits(tmp_path: Path, tokenizer: Tokenizer) -> None:
    callers, allowances = (("alice", hashlib.sha256(b"secret").hexdigest()),), (("alice", (("rate", 1),)),)
    with site(tmp_path, tokenizer, callers=callers, allowances=allowances) as made:
        made.worker()
        assert ask(made).status == 401 and isinstance(ask(made).json["error"], str)
        assert made.ask("GET", "/").status == 200 and made.ask("GET", "/api/tags").status == 401
        key = {"authorization": "Bearer secret"}
        assert ask(made, headers=key).status == 200
        limited = ask(made, headers=key)
        assert limited.status == 429 and isinstance(limited.json["error"], str)
        assert int(limited.headers["retry-after"]) > 0


def test_a_stream_that_breaks(bare: ScriptedSite) -> None:
    def breaks(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        yield worker.tokens(submit, 0, [40])
        bare.wait_for_readers()
        yield Failed(worker.incarnation, worker.proxy, submit.request_id, submit.attempt, "no", 503)

    bare.worker(script=breaks)
    *lines, error = lines_of(ask(bare, stream=True))
    assert lines and error.keys() == {"error"} and "attempt 1 of 1" in error["error"]


def test_streams_cannot_be_continued(pair: ScriptedSite) -> None:
    answer = ask(pair, headers={"pontil-resume": "1"}, stream=True)
    assert answer.status == 400 and "streams of /api/chat cannot be continued" in answer.json["error"]


def test_a_silent_stream_gets_lines_without_text(bare: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of lines know no comments."""
    monkeypatch.setattr("pontil.http.stream.reply.KEEP_ALIVE_AFTER", 0.01)
    worker, connection = bare.worker(script=silent), bare.connect()
    connection.request("POST", "/api/chat", json.dumps({"model": MODEL, "messages": HI}))
    submit = worker.submits.get(timeout=DEADLINE)
    worker.say(worker.tokens(submit, 0, [40]))
    response = connection.getresponse()
    first, second = (json.loads(response.readline()) for _ in range(2))
    assert first["message"]["content"] and second["message"] == {"role": "assistant", "content": ""}
    worker.say(worker.tokens(submit, 1, [41], finish_reason="stop", generated_tokens=2))
    assert json.loads(response.read().split(b"\n")[-2])["eval_count"] == 2
