# SPDX-License-Identifier: Apache-2.0
"""An answer that follows its grammar and not its schema is told to the client, whole and streamed alike."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest
from library_schemas import SCHEMAS, LibrarySchema
from scripted_site import HttpAnswer, ScriptedSite, site

from pontil.http.stream import answer_checker
from pontil.http.stream.answer_checker import AnswerChecker
from pontil.runtime.grammar.processes.bounded_process import AnswerCheckProcess
from pontil.runtime.grammar.processes.verdict import SchemaState, Verdict
from pontil.runtime.tokenizer.tokenizer import Tokenizer

HEADER, FIELD = "x-pontil-schema", "x_pontil_schema"
UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def asked(schema: Any, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema} | more}}


def last_choices(answer: HttpAnswer) -> list[dict[str, Any]]:
    """The choices of a stream's chunks with a finish reason."""
    events = [event for event in answer.events if event != "[DONE]"]
    return [choice for event in events for choice in event["choices"] if choice["finish_reason"]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Any:
    """Sites by the text that their worker answers with, whatever the grammar says."""
    with site(tmp_path_factory.mktemp("site"), tokenizer) as made:
        worker = made.worker()

        def answering(value: Any) -> ScriptedSite:
            text = value if isinstance(value, str) else json.dumps(value)
            worker.answer = tokenizer.encode(text, False)
            return made

        yield answering


def saying(value: Any) -> str:
    return json.dumps(value)


@pytest.mark.parametrize("one", SCHEMAS, ids=lambda one: one.name)
def test_what_libraries_write_is_served(answers: Any, one: LibrarySchema) -> None:
    """An answer that follows the schema is told nothing, one that does not is told, in the header and in the body."""
    good = answers(saying(one.good)).chat(**asked(one.schema))
    assert good.status == 200 and HEADER not in good.headers, good.body
    assert FIELD not in good.json["choices"][0]
    if one.bad is not None:
        bad = answers(saying(one.bad)).chat(**asked(one.schema))
        assert bad.headers[HEADER] == "not met" and bad.json["choices"][0]["finish_reason"] == "stop"
        assert bad.json["choices"][0][FIELD]["state"] == "not met"
        assert bad.json["choices"][0]["message"]["content"] == saying(one.bad), "and delivered all the same"


@pytest.mark.parametrize("one", SCHEMAS, ids=lambda one: one.name)
def test_strict_asks_for_all_of_it(answers: Any, one: LibrarySchema) -> None:
    answer = answers(saying(one.good)).chat(**asked(one.schema, strict=True))
    assert answer.status == (200 if one.strict else 400), answer.body
    if not one.strict:
        error = answer.json["error"]
        assert "strict is true" in error["message"] and " at #" in error["message"]
        assert error["param"] == "response_format.json_schema.schema"


def test_a_refusal_names_the_keyword_and_its_place(answers: Any) -> None:
    schema = {"type": "object", "properties": {"a/b": {"items": UNIQUE, "type": "array"}}}
    answer = answers("1").chat(**asked(schema, strict=True))
    assert "uniqueItems at #/properties/a~1b/items:" in answer.json["error"]["message"]


@pytest.mark.parametrize("schema", [False, {"not": {}}, {"type": "string", "pattern": "("}, {"$ref": "http://a/b"}])
@pytest.mark.parametrize("strict", [False, True])
def test_what_nothing_can_follow_is_refused(answers: Any, schema: Any, strict: bool) -> None:
    answer = answers("1").chat(**asked(schema, strict=strict))
    assert answer.status == 400 and answer.json["error"]["param"] == "response_format.json_schema.schema"


def test_streams_tell_it_in_the_last_chunk_of_each_choice(answers: Any) -> None:
    made = answers("  [1, 1]")  # the second choice of a scripted worker begins a character later
    whole = made.complete(n=2, max_tokens=50, **asked(UNIQUE))
    assert whole.headers[HEADER] == "not met"
    notes = [choice[FIELD] for choice in whole.json["choices"]]
    assert notes == [{"state": "not met", "reason": "uniqueItems at #"}] * 2
    for stream in (
        made.complete(n=2, max_tokens=50, stream=True, **asked(UNIQUE)),
        made.chat(n=2, stream=True, stream_options={"include_usage": True}, **asked(UNIQUE)),
    ):
        last = last_choices(stream)
        assert [choice[FIELD] for choice in last] == notes and {choice["index"] for choice in last} == {0, 1}
        assert {choice["finish_reason"] for choice in last} == {"stop"} and stream.events[-1] == "[DONE]"
        assert stream.text == "  [1, 1]"
    assert all(FIELD not in choice for choice in last_choices(answers("[1, 2]").chat(stream=True, **asked(UNIQUE))))


def test_a_handed_over_answer_is_checked_alike(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """The proxy checks the delivered text, whoever made it."""
    with site(tmp_path, tokenizer) as made:
        made.pair(text="[1, 1]")
        answer = made.chat(**asked(UNIQUE))
        assert ">" in answer.headers["x-pontil-route"] and answer.headers[HEADER] == "not met"


def test_a_cut_answer_is_told_too(answers: Any) -> None:
    answer = answers("[1, 2]").chat(max_tokens=3, **asked(UNIQUE))
    assert answer.headers[HEADER] == "not met" and answer.json["choices"][0]["finish_reason"] == "length"
    assert "no complete JSON" in answer.json["choices"][0][FIELD]["reason"]


def test_a_schema_that_a_grammar_holds_is_not_checked_again(answers: Any) -> None:
    """The mask is the check; the scripted worker follows none."""
    answer = answers('"a"').chat(**asked({"type": "integer"}))
    assert answer.status == 200 and HEADER not in answer.headers


def test_the_official_client_reads_replies_with_it(answers: Any) -> None:
    made = answers("[1, 1]")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{made.port}/v1", api_key="none", max_retries=0)
    wanted: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **asked(UNIQUE)}
    raw = client.chat.completions.with_raw_response.create(**wanted)
    assert raw.headers[HEADER] == "not met" and raw.parse().choices[0].finish_reason == "stop"
    with client.chat.completions.stream(**wanted) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "[1, 1]" and final.choices[0].finish_reason == "stop"
    chunks = list(client.chat.completions.create(**wanted, stream=True))
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert (chunks[-1].choices[0].model_extra or {})[FIELD]["state"] == "not met"


HOSTILE: list[tuple[Any, str]] = [
    ({"type": "string", "pattern": "^(?=(a+)+$)"}, json.dumps("a" * 60 + "b")),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}, "1"),
    ({"uniqueItems": True}, json.dumps([{"a": number} for number in range(40_000)])),
    ({"uniqueItems": True}, "[" * 50_000),
    ({"not": {"$ref": "http://127.0.0.1:9/never-fetched"}}, "1"),
    ({"not": {"$dynamicRef": "#a"}}, "1"),
    ({"dependentRequired": 5}, '{"a": 1}'),
    ({"not": {"multipleOf": 0}}, "1" + "0" * 5000),
]


def test_checks_have_an_end() -> None:  # C14
    """Any schema gets a verdict, and the next answer is checked as usual."""

    async def run() -> None:
        checker = AnswerChecker(AnswerCheckProcess(timeout=20))
        try:
            for schema, text in HOSTILE:
                found = await checker.verdict(json.dumps(schema), text)
                assert found.state is SchemaState.NOT_CHECKED and found.reason, (schema, found)
                assert (await checker.verdict(json.dumps(UNIQUE), "[1, 1]")).state is SchemaState.NOT_MET
        finally:
            await checker.close()

    asyncio.run(run())


def test_a_schema_whose_checks_do_not_end_is_given_up() -> None:
    class Never(AnswerCheckProcess):
        asked = 0

        async def verdict(self, schema: str, text: str) -> Verdict | None:
            Never.asked += 1
            return None

    async def run() -> None:
        checker = AnswerChecker(Never())
        for _ in range(6):
            assert (await checker.verdict("{}", "1")).state is SchemaState.NOT_CHECKED
        assert Never.asked == answer_checker.MOST_FAILURES
        await checker.verdict('{"a": 1}', "1")
        assert Never.asked == answer_checker.MOST_FAILURES + 1, "others are checked"

    asyncio.run(run())


def test_a_check_that_stands_still_is_waited_for_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:  # C14
    """The one behind it gives up too, and the event loop goes on meanwhile."""
    monkeypatch.setattr(answer_checker, "TURN_TIMEOUT", 0.1)

    async def run() -> None:
        checker = AnswerChecker(AnswerCheckProcess(timeout=0.5))
        await checker.process.start()
        assert checker.process.pid is not None
        os.kill(checker.process.pid, signal.SIGSTOP)
        first, second = await asyncio.gather(checker.verdict("{}", "1"), checker.verdict("{}", "2"))
        assert first.reason == answer_checker.COSTLY and "other answers" in second.reason
        checker.process.timeout = 60.0
        assert (await checker.verdict("{}", "3")).state is SchemaState.MET
        await checker.close()

    asyncio.run(run())
