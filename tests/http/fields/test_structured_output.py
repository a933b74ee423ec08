# SPDX-License-Identifier: Apache-2.0
"""A structured output request reaches the workers as a grammar, for each endpoint and parameter."""

import asyncio
import json
import re
import signal
from typing import Any

import jsonschema
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from scripted_site import ScriptedSite

from pontil.http.fields.structured_output import MAX_DEPTH, STRUCTURE, OutputStructure, is_deep, structure_of
from pontil.http.intake import grammar_check
from pontil.http.intake.caller_turns import CALLER
from pontil.http.intake.grammar_check import GrammarCheck
from pontil.http.schema.parameter import object_schema, read_all
from pontil.http.schema.reader import Fields
from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.grammar.grammar import check_grammar
from pontil.runtime.grammar.grammar_text import (
    bounded_object,
    grammar_of_choices,
    grammar_of_regex,
    grammar_of_rules,
    grammar_of_schema,
)
from pontil.runtime.grammar.processes.bounded_process import GrammarProcess
from pontil.runtime.grammar.tag_grammar import (
    FixedText,
    FreeText,
    InTurn,
    JsonValue,
    OneOfFormats,
    TagFormat,
    Tagged,
    TriggeredTags,
    grammar_of_format,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAGS = {
    "type": "structural_tag", "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<"],
}  # fmt: skip
TAG = {"begin": "<f>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}
TAGGED = Tagged("<f>", JsonValue(SCHEMA), "</f>")
TRIGGERED = TriggeredTags(("<",), (TAGGED,))
CONST, ANY = {"type": "const_string", "value": "a"}, {"type": "any_text"}
FORMATS: list[tuple[dict[str, Any], TagFormat]] = [
    (CONST, FixedText("a")), (ANY, FreeText()), (ANY | {"excludes": []}, FreeText()),
    ({"type": "json_schema", "json_schema": True}, JsonValue({})),
    ({"type": "tag"} | TAG, TAGGED),
    ({"type": "sequence", "elements": [CONST, ANY]}, InTurn((FixedText("a"), FreeText()))),
    ({"type": "or", "elements": [CONST, {"type": "tag"} | TAG]}, OneOfFormats((FixedText("a"), TAGGED))),
    ({"type": "triggered_tags", "triggers": ["<", "<"], "tags": [TAG, {"type": "tag"} | TAG]},
     TriggeredTags(("<",), (TAGGED, TAGGED))),
    ({"type": "triggered_tags", "triggers": ["<"], "tags": [TAG], "stop_after_first": True, "at_least_one": False},
     TriggeredTags(("<",), (TAGGED,), True)),
]  # fmt: skip
SAME: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, grammar_of_schema(bounded_object())),
    ({"structured_outputs": {"json_object": True}}, grammar_of_schema(bounded_object())),
    ({"structured_outputs": {"json": SCHEMA}}, grammar_of_schema(SCHEMA)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, grammar_of_schema(SCHEMA)),
    ({"structured_outputs": {"choice": ["b", "a", "b"]}}, grammar_of_choices(["b", "a"])),
    ({"structured_outputs": {"regex": "a/b"}}, grammar_of_regex("a/b")),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, grammar_of_rules('start: "a"')),
    ({"structured_outputs": {"regex": "a", "whitespace_pattern": None, "disable_fallback": True}},
     grammar_of_regex("a")),
    ({"regex": "a/b"}, grammar_of_regex("a/b")),
    ({"ebnf": 'root ::= "a"'}, grammar_of_rules('root ::= "a"')),
    ({"grammar": 'root ::= "a"', "regex": ""}, grammar_of_rules('root ::= "a"')),
    ({"json_schema": SCHEMA}, grammar_of_schema(SCHEMA)),
    ({"json_schema": json.dumps(SCHEMA), "ebnf": ""}, grammar_of_schema(SCHEMA)),
    ({"response_format": TAGS}, grammar_of_format(TRIGGERED)),
    *(({"response_format": {"type": "structural_tag", "format": given}}, grammar_of_format(made))
      for given, made in FORMATS),
    *(
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA} | more}},
         grammar_of_schema(SCHEMA))
        for more in ({}, {"strict": True}, {"strict": False, "description": "d"}, {"strict": None})
    ),
]  # fmt: skip


def read(asked: dict[str, Any]) -> OutputStructure | None:
    fields = Fields(asked)
    return structure_of(fields, read_all(fields, STRUCTURE))


@pytest.mark.parametrize(("asked", "grammar"), SAME)
def test_every_form_becomes_its_grammar(pair: ScriptedSite, asked: dict[str, Any], grammar: str) -> None:  # D13
    for answer in (pair.complete(max_tokens=2, **asked), pair.chat(max_tokens=2, **asked)):
        assert answer.status == 200, answer.body
        for worker in pair.workers:
            assert worker.submits.get(timeout=60).sampling["grammar"] == grammar


WRONG_TAGS: list[dict[str, Any]] = [
    {"structures": []}, {"structures": None}, {"structures": [{"begin": "<f>", "schema": {}}]}, {"triggers": []},
    {"structures": [{"begin": "<f>", "schema": 1, "end": ""}]}, {"triggers": None}, {"triggers": [""]},
    {"structures": [{"begin": "<", "schema": {}, "end": "", "more": 1}]}, {"triggers": ["<"] * 17},
    {"structures": [{"begin": "<" * 1025, "schema": {}, "end": ""}]}, {"format": {}}, {"more": 1},
]  # fmt: skip
SHAPELESS: list[dict[str, Any]] = [
    {"response_format": "text"}, {"response_format": {}}, {"response_format": {"type": "json"}},
    {"response_format": {"type": "json_object", "more": None}}, {"response_format": {"type": "json_schema"}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "", "schema": {}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": []}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": 1}}},
    {"structured_outputs": {}}, {"structured_outputs": {"regex": None}}, {"structured_outputs": {"regex": ""}},
    {"structured_outputs": {"regex": "a", "choice": ["a"]}}, {"structured_outputs": {"choice": []}},
    {"structured_outputs": {"choice": [""]}}, {"structured_outputs": {"choice": "a"}},
    {"structured_outputs": {"json": 1}}, {"structured_outputs": {"json_object": False}},
    {"structured_outputs": {"regex": "a", "structural_tag": "t"}}, {"structured_outputs": {"regex": "a", "more": None}},
    {"regex": 1}, {"ebnf": []}, {"json_schema": 1},
    *({"response_format": TAGS | wrong} for wrong in WRONG_TAGS),
    {"guided_json": {}}, {"guided_decoding_backend": "auto"}, {"structural_tag": "t"},
]  # fmt: skip


@pytest.mark.parametrize("asked", [*(asked for asked, _ in SAME), *SHAPELESS], ids=str)
def test_the_schemas_take_what_the_readers_take(asked: dict[str, Any]) -> None:  # F3
    takes = jsonschema.Draft202012Validator(object_schema(STRUCTURE, 50)).is_valid(asked)
    assert takes == (asked not in SHAPELESS)
    if not takes:
        with pytest.raises(RequestError) as refused:
            read(asked)
        assert str(refused.value.param).startswith(next(iter(asked)))


@pytest.mark.parametrize(
    "asked", [{}, {"response_format": None}, {"response_format": {"type": "text"}}, {"structured_outputs": None},
              {"guided_json": None}],
)  # fmt: skip
def test_an_answer_may_be_free(asked: dict[str, Any]) -> None:
    assert read(asked) is None


def test_depth_is_counted_in_containers() -> None:
    value: Any = 5
    for depth in range(1, MAX_DEPTH + 3):
        value = [value] if depth % 2 else {"a": value}
        assert is_deep(value) is (depth > MAX_DEPTH)


def test_what_is_absurdly_large_is_refused_before_it_is_compiled() -> None:
    with pytest.raises(RequestError, match="too large") as refused:
        read({"structured_outputs": {"json": {"enum": ["a" * 99] * 1500}}})
    assert refused.value.param == "structured_outputs.json"


def test_a_grammar_is_checked_once(pair: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    check = GrammarProcess.check

    async def counting(process: GrammarProcess, grammar: str) -> str | None:
        compiled.append(grammar)
        return await check(process, grammar)

    monkeypatch.setattr(GrammarProcess, "check", counting)
    for _ in range(3):
        assert pair.complete(max_tokens=2, structured_outputs={"regex": "checked once"}).status == 200
        assert pair.complete(max_tokens=2, structured_outputs={"regex": "(checked once"}).status == 400
    assert compiled == [grammar_of_regex("checked once"), grammar_of_regex("(checked once")]
    for worker in pair.workers:
        for _ in range(3):
            worker.submits.get(timeout=60)


def test_a_check_has_an_end() -> None:  # C14
    """A timed-out check is repeated for the next request: the machine may have been at fault."""

    async def run() -> None:
        check, wanted = GrammarCheck(GrammarProcess(timeout=0.1)), OutputStructure(grammar_of_regex("a"), "the.field")
        await check.process.start()
        assert check.process.process is not None
        check.process.process.send_signal(signal.SIGSTOP)
        with pytest.raises(RequestError, match="the.field: it takes more than 0.1 s to compile") as refused:
            await check.check(wanted)
        assert refused.value.param == "the.field" and refused.value.status == 400
        check.process.timeout = 60.0
        await check.check(wanted)
        check.close()

    asyncio.run(run())


def test_waiting_for_others_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:  # C14
    monkeypatch.setattr(grammar_check, "TURN_TIMEOUT", 0.05)

    async def run() -> None:
        check = GrammarCheck()
        await check.turns.take(1)
        with pytest.raises(Unavailable, match="other grammars"):
            await check.check(OutputStructure(grammar_of_regex("a"), "structured_outputs.regex"))
        check.turns.release()
        await check.check(OutputStructure(grammar_of_regex("a"), "structured_outputs.regex"))
        check.close()

    asyncio.run(run())


class HeldCompiler(GrammarProcess):
    """A process whose compilations end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.go = asyncio.Semaphore(0)

    async def check(self, grammar: str) -> str | None:
        self.asked.append(grammar)
        await self.go.acquire()
        return None


def test_callers_have_turns_at_the_compiler() -> None:
    """Another caller waits for the grammar that is compiled, and not for those that wait."""

    async def run() -> None:
        process = HeldCompiler()
        check = GrammarCheck(process)

        async def asks(caller: str, pattern: str) -> None:
            CALLER.set(caller)
            await check.check(OutputStructure(grammar_of_regex(pattern), "the.field"))

        tasks = [asyncio.ensure_future(asks("greedy", f"a{number}")) for number in range(8)]
        await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(asks("ann", "mine")))
        await asyncio.sleep(0)
        for _ in tasks:
            process.go.release()
        await asyncio.gather(*tasks)
        assert process.asked.index(grammar_of_regex("mine")) <= 2 and len(process.asked) == 9

    asyncio.run(run())


def within(depth: int, inner: dict[str, Any]) -> dict[str, Any]:
    return inner if depth == 0 else {"type": "sequence", "elements": [within(depth - 1, inner)]}


@pytest.mark.parametrize(
    ("given", "param", "says"),
    [
        ({"type": "regex", "pattern": "a"}, "type", "regex is not supported yet"),
        ({"type": "tags_with_separator"}, "type", "tags_with_separator is not supported yet"),
        ({"type": "more"}, "type", "must be one of const_string, json_schema, any_text, sequence, or, tag"),
        ({"type": "const_string", "value": ""}, "value", "is empty"),
        (CONST | {"more": 1}, "more", "not a parameter"),
        ({"type": "any_text", "excludes": ["a"]}, "excludes", "not supported yet"),
        ({"type": "json_schema", "json_schema": 1}, "json_schema", "a JSON schema"),
        ({"type": "or", "elements": []}, "elements", "is empty"),
        ({"type": "or", "elements": [1]}, "elements[0]", "must be an object"),
        ({"type": "or", "elements": [CONST, ANY | {"x": 1}]}, "elements[1].x", "not a parameter"),
        ({"type": "or", "elements": [CONST] * 128}, "elements[127].type", "one element too many"),
        (within(17, CONST), "elements[0]." * 17 + "type", "one element too many"),
        ({"type": "tag"} | TAG | {"end": ["a"]}, "end", "must be a string"),
        ({"type": "tag"} | TAG | {"content": None}, "content", "is missing"),
        ({"type": "triggered_tags", "triggers": ["["], "tags": [TAG]}, "tags[0].begin", "add a trigger"),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": [TAG | {"type": "or"}]}, "tags[0].type", "must be tag"),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": []}, "triggers", "no tag begins"),
        (
            {"type": "triggered_tags", "triggers": ["<"], "tags": [TAG], "at_least_one": True},
            "at_least_one",
            "not supported",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_format_that_cannot_be_held_is_named(given: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(RequestError, match=re.escape(says)) as refused:
        read({"response_format": {"type": "structural_tag", "format": given}})
    assert f"response_format.format.{param}".startswith(str(refused.value.param).removesuffix("…"))


def test_free_text_that_nothing_ends_is_refused() -> None:
    given = {"type": "sequence", "elements": [ANY, CONST]}
    with pytest.raises(RequestError, match="response_format cannot be used: an element any_text has no end") as refused:
        read({"response_format": {"type": "structural_tag", "format": given}})
    assert refused.value.param == "response_format"


ELEMENTS = st.recursive(
    st.sampled_from([CONST, ANY, TAG["content"], {"type": "regex"}, {}]),
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["sequence", "or"]), "elements": st.lists(inner, min_size=1, max_size=3)}
        ),
        st.fixed_dictionaries({"type": st.just("tag"), "begin": st.just("<f>"), "content": inner,
                               "end": st.sampled_from(["", "</f>"])}),
        st.fixed_dictionaries({"type": st.just("triggered_tags"), "triggers": st.just(["<"]), "tags": st.lists(
            st.fixed_dictionaries({"begin": st.just("<f>"), "content": inner, "end": st.just("</f>")}), max_size=2,
        )}),
    ),
    max_leaves=8,
)  # fmt: skip


@settings(deadline=None)
@drawn(given=ELEMENTS)
def test_a_format_is_a_usable_grammar_or_refused(given: dict[str, Any]) -> None:
    try:
        structure = read({"response_format": {"type": "structural_tag", "format": given}})
    except RequestError as refused:
        assert str(refused.param).startswith("response_format")
    else:
        assert structure is not None
        check_grammar(structure.grammar)
