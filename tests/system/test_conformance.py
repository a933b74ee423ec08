# SPDX-License-Identifier: Apache-2.0
"""The conformance suite: this server passes it, and a server with a fault in its answers does not."""

import json
from dataclasses import replace

import pytest
from faulty_api import Fault, FaultyApi, found_with, status, text
from forked_program import run_program
from served import APP, Served

from pontil.launcher.tools.conformance import rank_checks
from pontil.launcher.tools.conformance.api import ApiAnswer
from pontil.launcher.tools.conformance.check import outcome
from pontil.launcher.tools.conformance.suite import CHECKS

MODEL = "smollm2-135m-instruct"


def test_this_server_passes_every_check(pair: Served) -> None:
    """Only what no model of it does is refused, with the way out."""
    done = run_program([str(APP), "conformance", f"127.0.0.1:{pair.port}", "--json"], timeout=300)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    others = [one for one in found if one["verdict"] != "pass"]
    assert {one["topic"] for one in others} == {"rerank and score"} and len(found) == len(CHECKS), others
    assert all(one["verdict"] == "refused" and "start the server with --rerank" in one["detail"] for one in others)
    assert len(others) == len(rank_checks.CHECKS)
    assert done.returncode == 0 and not done.stderr


def without_type(answer: ApiAnswer) -> ApiAnswer:
    return replace(answer, headers={})


@pytest.mark.parametrize(
    ("fault", "topic", "part"),
    [
        (text(r"data: \[DONE\]\n\n", ""), "streams", "[DONE] is last"),
        (text(r"data: \[DONE\]\n\n", "data: [DONE]\n\ndata: {}\n\n"), "streams", "[DONE] is last"),
        (without_type, "streams", "[DONE] is last"),
        (text(r'"total_tokens": ?\d+', '"total_tokens":1'), "completions", "an answer has id"),
        (text(r'"completion_tokens": ?\d+', '"completion_tokens":9'), "completions", "max_tokens ends"),
        (text(r'"index": ?1', '"index":0'), "completions", "several prompts"),
        (text(r'"role": ?"assistant"', '"role":"model"'), "chat", "an answer has id"),
        (text(r'"role": ?"assistant",', ""), "chat streams", "the first event brings the role"),
        (text(r'"usage": ?null', '"usage":{"prompt_tokens":1}'), "chat streams", "include_usage"),
        (text(r'"name": ?"get_weather"', '"name":"get_news"'), "tools", "a named tool"),
        (text(r'"param"', '"parameter"'), "errors", "a model that is not served"),
        (text("content_block_start", "content_block_open"), "messages", "each block of a stream"),
        (text("text_delta", "thinking_delta"), "messages", "each block of a stream"),
        (text('"message_start"', '"message_begin"'), "messages", "a stream begins with message_start"),
        (text("partial_json", "text"), "messages", "a call that has to be made"),
        (text('"invalid_request_error"', '"error"'), "messages", "errors have Anthropic's shape"),
        (status(400, 200), "messages", "max_tokens has to be above"),
        (text(r'"done": ?true', '"done":false'), "Ollama", "an answer is streamed"),
        (text("\n", "\n: keep-alive\n\n"), "Ollama", "an answer is streamed"),
        (text("eval_count", "count"), "Ollama", "an answer has model"),
        (status(404, 400), "Ollama", "a model that is not there"),
        (status(404, 400), "errors", "a model that is not served"),
        (status(400, 500), "errors", "a number as text"),
        (status(405, 404), "HTTP", "a method"),
        (text(r".+", "<html>"), "models", "GET /v1/models lists"),
        (text(r".+", "[]"), "structured output", "response_format json_schema"),
        (text(r'"choices": ?', '"options":'), "tools", "tool_choice none"),
    ],
)
def test_a_fault_is_found(pair: Served, fault: Fault, topic: str, part: str) -> None:
    found = found_with(fault, pair.port, MODEL, topic, part)
    assert found.verdict == "differs" and found.detail.isprintable() and len(found.detail) < 500


def test_an_optional_part_may_be_refused_by_name(pair: Served) -> None:
    refusal = ApiAnswer(400, {}, b'{"error": {"message": "no logprobs here", "type": "t", "param": "p", "code": null}}')
    refusing = type("RefusingApi", (FaultyApi,), {"fault": staticmethod(lambda answer: refusal)})
    api = refusing(f"http://127.0.0.1:{pair.port}", MODEL, {})
    found = {check.name: outcome(check, api) for check in CHECKS if check.topic == "completions"}
    optional = next(one for name, one in found.items() if name.startswith("logprobs"))
    assert optional.verdict == "refused" and optional.detail == "no logprobs here"
    assert next(one for name, one in found.items() if name.startswith("n gives")).verdict == "differs"


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    done = run_program([str(APP), "conformance", "127.0.0.1:1"])
    assert done.returncode == 1 and done.stderr.startswith("Error: the server at") and done.stderr.count("\n") == 1
