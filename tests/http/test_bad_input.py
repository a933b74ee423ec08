# SPDX-License-Identifier: Apache-2.0
"""Any bad input gets an error object with the right status, and the server keeps serving (F3)."""

import json
import socket
from typing import Any

import pytest
from scripted_site import MODEL, HttpAnswer, ScriptedSite
from scripted_worker import DEADLINE

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GOOD = {"model": MODEL, "prompt": "hi"}
MESSAGES = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


def format_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def nested(depth: int) -> dict[str, Any]:
    return {"items": nested(depth - 1)} if depth else {"type": "null"}


# Invalid fields of a completion, and the parameter that the error names.
COMPLETION_FIELDS: list[tuple[dict[str, Any], str | None]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": ["a", [1]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [10**6]}, "prompt"),
    ({"prompt": [10**30]}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"prompt": 7}, "prompt"),
    ({"prompt": ["a"] * 65}, "prompt"),
    ({"prompt": "abc " * 600}, "prompt"),
    ({"prompt": [5] * 512}, "prompt"),
    ({"model": 5}, "model"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 600}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 1.0}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "warm"}, "temperature"),
    ({"temperature": False}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 0.5}, "top_k"),
    ({"seed": "x"}, "seed"),
    ({"seed": 2**70}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": [5]}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"stop": "a" * 1025}, "stop"),
    ({"stop_token_ids": 5}, "stop_token_ids"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"include_usge": True}}, "stream_options.include_usge"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"user": 5}, "user"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": True}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": False}, "prompt_logprobs"),
    ({"echo": 1}, "echo"),
    ({"suffix": "end"}, "suffix"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": False}, "frequency_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 11}, "repetition_penalty"),
    ({"logit_bias": [5]}, "logit_bias"),
    ({"logit_bias": {"five": 1}}, "logit_bias"),
    ({"logit_bias": {"-5": 1}}, "logit_bias"),
    ({"logit_bias": {"\u0665": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
    ({"logit_bias": {"1000000": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 50: 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
    ({"logit_bias": {"5": None}}, "logit_bias.5"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
    ({"min_p": 1.1}, "min_p"),
    ({"min_p": "a"}, "min_p"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"min_tokens": 17}, "min_tokens"),
    ({"bad_token_ids": [10**6]}, "bad_token_ids"),
    ({"bad_token_ids": 5}, "bad_token_ids"),
    ({"bad_token_ids": [5] * 4097}, "bad_token_ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
    ({"allowed_token_ids": [5, 6], "bad_token_ids": [6, 5]}, "allowed_token_ids"),
    ({"bad_words": ["a"]}, "bad_words"),
    ({"response_format": {"type": "json_objects"}}, "response_format.type"),
    ({"response_format": {"type": "structural_tag"}}, "response_format.triggers"),
    ({"response_format": "json_object"}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format.json_schema.name"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema.schema"),
    ({"response_format": format_of({"type": "thing"})}, "response_format.json_schema.schema"),
    ({"response_format": format_of({"$ref": "http://127.0.0.1/a"})}, "response_format.json_schema.schema"),
    ({"response_format": format_of({"type": "string", "pattern": "(?=a)"})}, "response_format.json_schema.schema"),
    ({"response_format": format_of({"x-guidance": {"lenient": True}})}, "response_format.json_schema.schema"),
    ({"response_format": format_of(nested(65))}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_object", "odd": 1}}, "response_format.odd"),
    ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "(?<=a)b"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a", 5]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": "start: missing"}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": [1]}}, "structured_outputs.json"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
    ({"guided_json": {"type": "object"}}, "guided_json"),
    ({"guided_regex": "a"}, "guided_regex"),
    ({"guided_choice": ["a"]}, "guided_choice"),
    ({"guided_grammar": "start: a"}, "guided_grammar"),
    ({"temprature": 1}, "temprature"),
]
CHAT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "wiz ard", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "wobble", "text": "a"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "hi", "audio": {"id": 1}}]}, "messages[0].audio"),
    ({"max_token": 3}, "max_token"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"metadata": "me"}, "metadata"),
    ({"messages": [{"role": "assistant", "content": "hi", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
    ({"messages": [{"role": "user", "content": "abc " * 600}]}, "messages"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 600}, "max_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": True, "logprobs": True}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
    ({"best_of": 2}, "best_of"),
    ({"min_tokens": 3, "max_tokens": 2}, "min_tokens"),
    ({"prompt": "hi"}, "prompt"),
]
BODIES: list[tuple[str, bytes]] = [
    ("nothing", b""),
    ("half an object", b'{"model": '),
    ("an array", b"[1, 2]"),
    ("a string", b'"hi"'),
    ("null", b"null"),
    ("NaN", b'{"prompt": "hi", "temperature": NaN}'),
    ("Infinity", b'{"prompt": "hi", "temperature": -Infinity}'),
    ("an infinite float", b'{"prompt": "hi", "temperature": 1e999}'),
    ("too many digits", b'{"prompt": "hi", "seed": ' + b"9" * 5000 + b"}"),
    ("deep arrays", b"[" * 50_000),
    ("deep objects", b'{"a":' * 15_000),
    ("deep and closed", b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}"),
    ("a name twice", b'{"prompt": "hi", "prompt": "hi"}'),
    ("a name twice inside", b'{"prompt": "hi", "logit_bias": {"5": 1, "5": 2}}'),
    ("a name of half a surrogate pair twice", b'{"prompt": "hi", "\\ud83d": 1, "\\ud83d": 2}'),
    ("a long name twice", b'{"' + b"a" * 5000 + b'": 1, "' + b"a" * 5000 + b'": 2}'),
    ("half a surrogate pair", b'{"prompt": "\\ud83d"}'),
    ("half a surrogate pair as a name", b'{"prompt": "hi", "\\ude00": 1}'),
    ("not UTF-8", b'{"prompt": "\xff\xfe"}'),
    ("UTF-16", '{"prompt": "hi"}'.encode("utf-16")),
    ("a form", b"prompt=hi"),
]


def is_refused(answer: HttpAnswer, status: int, param: str | None = None) -> None:
    assert answer.status == status, answer.body[:300]
    assert answer.headers["content-type"] == "application/json"
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["param"] == param
    assert error["message"] and "Traceback" not in error["message"] and len(error["message"]) < 500


@pytest.mark.parametrize(("fields", "param"), COMPLETION_FIELDS, ids=lambda value: str(value)[:40])
def test_completions(pair: ScriptedSite, fields: dict[str, Any], param: str) -> None:
    is_refused(pair.ask("POST", COMPLETIONS, GOOD | fields), 400, param)


@pytest.mark.parametrize(("fields", "param"), CHAT_FIELDS, ids=lambda value: str(value)[:40])
def test_chat(pair: ScriptedSite, fields: dict[str, Any], param: str) -> None:
    is_refused(pair.ask("POST", CHAT, MESSAGES | fields), 400, param)


SYSTEMS = [{"role": "system", "content": "One."}, {"role": "system", "content": "Two."}, *MESSAGES["messages"]]
RESULTS = [{"role": "user", "content": "One."}, {"role": "tool", "tool_call_id": "nobody's", "content": "Two."}]
OUTPUTS = [*RESULTS[:1], {"type": "function_call_output", "call_id": "nobody's", "output": "Two."}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": SYSTEMS}),
        (CHAT, {"messages": RESULTS}),
        ("/v1/responses", {"input": SYSTEMS}),
        ("/v1/responses", {"instructions": "One.", "input": SYSTEMS[1:]}),
        ("/v1/responses", {"input": OUTPUTS}),
        ("/v1/messages", {"system": "One.", "messages": SYSTEMS[1:], "max_tokens": 9}),
        ("/v1/messages", {"system": [{"type": "text", "text": said} for said in ("One.", "Two.")], "max_tokens": 9}),
        ("/api/chat", {"messages": SYSTEMS}),
        ("/api/chat", {"messages": RESULTS}),
    ],
    ids=str,
)
def test_of_two_system_prompts_or_a_result_without_its_call_nothing_is_lost(
    pair: ScriptedSite, path: str, fields: dict[str, Any]
) -> None:
    """Only Messages refuse a result without its call, as Anthropic does (anthropic/test_route.py)."""
    answer = pair.ask("POST", path, MESSAGES | {"stream": False} | fields if path != "/v1/responses" else fields)
    assert answer.status == 200, answer.body
    prompt = pair.tokenizer.decode(pair.last_submit().prompt, skip_special_tokens=False)
    assert "One." in prompt and "Two." in prompt


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": 2.5}, "not 2.5"),
        ({"top_k": -7}, "not -7"),
        ({"n": 10**4000}, f"not 1{'0' * 59}…"),
        ({"logit_bias": {"1000000": 1}}, "the id 1000000,"),
        ({"stop_token_ids": [1, 10**6]}, "the id 1000000,"),
        ({"prompt": [1, -3]}, "the id -3,"),
        ({"response_format": {"type": "jason"}}, 'not "jason"'),
        ({"response_format": {"type": "\u00e9\n" * 99}}, 'not "\\u00e9\\n'),
        ({"truncate_prompt_tokens": -2}, "not -2"),
        ({"cache_salt": "x" * 300}, "not 300"),
    ],
)
def test_errors_name_the_value(pair: ScriptedSite, fields: dict[str, Any], said: str) -> None:
    answer = pair.ask("POST", COMPLETIONS, GOOD | fields)
    assert answer.status == 400 and said in answer.json["error"]["message"], answer.body
    assert len(answer.json["error"]["message"]) < 300


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": [{"role": "wiz ard", "content": "hi"}]}, 'not "wiz ard"'),
        ({"messages": [{"role": "user", "content": [{"type": {"a": "b"}}]}]}, "not an object"),
        ({"tool_choice": "x" * 500}, f'not "{"x" * 59}…'),
        ({"tools": [{"type": "custom"}]}, 'not "custom"'),
    ],
)
def test_errors_of_chats_name_the_value(pair: ScriptedSite, fields: dict[str, Any], said: str) -> None:
    answer = pair.ask("POST", CHAT, MESSAGES | fields)
    assert answer.status == 400 and said in answer.json["error"]["message"], answer.body


@pytest.mark.parametrize("fields", [{"prompt": "abc " * 600}, {"prompt": [5] * 512}, {"max_tokens": 600}], ids=str)
def test_too_long_a_prompt_is_told_in_words_that_clients_look_for(pair: ScriptedSite, fields: dict[str, Any]) -> None:
    error = pair.ask("POST", COMPLETIONS, GOOD | fields).json["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 512 tokens. ")


@pytest.mark.parametrize("body", [body for _, body in BODIES], ids=[name for name, _ in BODIES])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_bodies(pair: ScriptedSite, path: str, body: bytes) -> None:
    answer = pair.ask("POST", path, body)
    if path.endswith("/tokenize") and b"1e999" in body:
        assert answer.headers["x-pontil-ignored"] == "temperature"
        return
    is_refused(answer, 400, answer.json["error"]["param"])


def test_what_is_missing_is_named(pair: ScriptedSite) -> None:
    is_refused(pair.ask("POST", COMPLETIONS, {"model": MODEL}), 400, "prompt")
    is_refused(pair.ask("POST", CHAT, {"model": MODEL}), 400, "messages")
    is_refused(pair.ask("POST", "/tokenize", {}), 400, "prompt")
    is_refused(pair.ask("POST", "/detokenize", {}), 400, "tokens")
    is_refused(pair.ask("POST", "/detokenize", {"tokens": [10**6]}), 400, "tokens")
    is_refused(pair.ask("POST", "/tokenize", {"promt": "a"}), 400, "promt")


@pytest.mark.parametrize("name", ["nobody", "", "x" * 10_000, "a\nb"])
def test_an_unknown_model_is_404(pair: ScriptedSite, name: str) -> None:
    answer = pair.ask("POST", COMPLETIONS, GOOD | {"model": name})
    is_refused(answer, 404, "model")
    assert answer.json["error"]["code"] == "model_not_found" and f"'{MODEL}'" in answer.json["error"]["message"]
    is_refused(pair.ask("GET", "/v1/models/nobody"), 404, "model")


def test_unknown_routes_and_wrong_methods(pair: ScriptedSite) -> None:
    is_refused(pair.ask("GET", "/v1/nothing"), 404)
    is_refused(pair.ask("POST", "/v1/nothing", {}), 404)
    answer = pair.ask("GET", COMPLETIONS)
    is_refused(answer, 405)
    assert set(answer.headers["allow"].split(", ")) == {"HEAD", "OPTIONS", "POST"}
    is_refused(pair.ask("POST", "/v1/models", {}), 405)


def test_a_body_that_is_too_large_is_413(pair: ScriptedSite) -> None:
    is_refused(pair.ask("POST", COMPLETIONS, json.dumps(GOOD | {"prompt": "a" * 100_000}).encode()), 413)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n"
    assert raw(pair, head).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"400"),
        (b"GET /v1/models HTTP/1.1\r\nx: " + b"a" * 20_000 + b"\r\n\r\n", b"431"),
        (b"POST /v1/completions HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"400"),
        (b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n", b"400"),
    ],
)
def test_what_is_not_http_gets_an_error_object_too(pair: ScriptedSite, data: bytes, status: bytes) -> None:
    answer = raw(pair, data)
    assert answer.startswith(b"HTTP/1.1 " + status), answer[:200]
    assert set(json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]) == {"message", "type", "param", "code"}


def raw(site: ScriptedSite, data: bytes) -> bytes:
    """Return the response to these bytes, up to the server's close."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=DEADLINE) as connection:
        connection.sendall(data)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


def test_the_server_goes_on(pair: ScriptedSite) -> None:
    answer = pair.complete(max_tokens=4)
    assert answer.status == 200 and answer.json["usage"]["completion_tokens"] == 4
    assert pair.proxy.idle


def test_neutral_values_of_what_is_not_supported_pass(pair: ScriptedSite) -> None:
    neutral = {
        "n": 1, "best_of": 1, "logprobs": None, "echo": False, "presence_penalty": 0, "frequency_penalty": 0.0,
        "repetition_penalty": 1.0, "logit_bias": {}, "min_p": 0, "min_tokens": 0, "suffix": None, "user": "me",
        "response_format": {"type": "text"}, "stop": None, "seed": None, "temperature": None, "stream_options": None,
        "top_k": -1, "max_tokens": None,
    }  # fmt: skip
    assert pair.complete(**neutral).status == 200
    assert pair.chat(tools=[], tool_choice="none", logprobs=False, store=False, parallel_tool_calls=True).status == 200
