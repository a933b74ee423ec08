# SPDX-License-Identifier: Apache-2.0
"""The events of a response tell of the same items as the response itself, in OpenAI's order."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pontil.http.openai.responses.output import COMPLETED, INCOMPLETE, ResponseOutput
from pontil.runtime.chat.answer_part import AnswerPart, Arguments, Call, Content, Reasoning

TOKEN = "0" * 32
TEXT_KINDS = {"message": "output_text", "reasoning": "reasoning_text"}


def parsed(data: bytes) -> list[dict[str, Any]]:
    """Return the events, whose names are those of their data."""
    events = []
    for block in data.decode().split("\n\n")[:-1]:
        name, line = block.split("\n")
        events.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def told(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items of which a reader hears, after checking the order of each item's events."""
    made: list[dict[str, Any]] = []
    rest = iter(events)
    for number, event in enumerate(rest):
        assert event["type"] == "response.output_item.added" and event["output_index"] == len(made), number
        made.append(told_item(event["item"], event["output_index"], rest))
    return made


def told_item(item: dict[str, Any], index: int, rest: Any) -> dict[str, Any]:
    assert item["status"] == "in_progress" and not item.get("content") and not item.get("arguments")
    is_call = item["type"] == "function_call"
    kind = "function_call_arguments" if is_call else TEXT_KINDS[item["type"]]
    about = {"item_id": item["id"], "output_index": index} | ({} if is_call else {"content_index": 0})
    text, event = "", next(rest)
    if not is_call:
        assert event["type"] == "response.content_part.added" and event["part"]["text"] == ""
        event = next(rest)
    while event["type"] == f"response.{kind}.delta":
        assert event.items() >= about.items() and event["delta"]
        text += event["delta"]
        event = next(rest)
    assert event["type"] == f"response.{kind}.done" and event["arguments" if is_call else "text"] == text
    if not is_call:
        event = next(rest)
        assert event["type"] == "response.content_part.done" and event["part"]["text"] == text
        part = event["part"]
    event = next(rest)
    assert event["type"] == "response.output_item.done" and event["output_index"] == index
    done: dict[str, Any] = event["item"]
    assert done["id"] == item["id"] and (done["arguments"] == text if is_call else done["content"] == [part])
    return done


@st.composite
def answers(draw: st.DrawFn) -> list[AnswerPart]:
    """Draw the parts of an answer as readers make them: arguments follow their call, calls are numbered."""
    parts: list[AnswerPart] = []
    calls = 0
    for _ in range(draw(st.integers(0, 8))):
        text = draw(st.text(min_size=1, max_size=4))
        kind = draw(st.sampled_from(["content", "reasoning", "call"]))
        if kind == "call":
            parts.append(Call(calls, draw(st.sampled_from(["f", "g"]))))
            parts += [Arguments(calls, piece) for piece in draw(st.sampled_from([["{", "}"], ["{}"], ["{"], []]))]
            calls += 1
        else:
            parts.append(Content(text) if kind == "content" else Reasoning(text))
    return parts


@given(answers(), st.integers(1, 3), st.sampled_from([COMPLETED, INCOMPLETE]))
def test_events_and_items_agree(parts: list[AnswerPart], size: int, status: str) -> None:
    output = ResponseOutput(TOKEN, {})
    data = b"".join(output.take(parts[start : start + size]) for start in range(0, len(parts), size))
    events = parsed(data + output.finish(status))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert told(events) == output.items and output.items
    names = [item["id"] for item in output.items]
    assert len(set(names)) == len(names) and all(TOKEN in name for name in names)
    for item in output.items[:-1]:
        if item["type"] != "function_call":
            assert item["status"] == COMPLETED
    for item in output.items:
        if item["type"] == "function_call":
            assert item["status"] == (COMPLETED if item["arguments"] == "{}" else INCOMPLETE)


@given(answers(), st.sampled_from([COMPLETED, INCOMPLETE]))
def test_items_do_not_depend_on_the_pieces(parts: list[AnswerPart], status: str) -> None:  # A8
    """Pieces of one text are one text."""
    split: list[AnswerPart] = []
    for part in parts:
        if isinstance(part, Content | Reasoning):
            split += [type(part)(letter) for letter in part.text]
        else:
            split.append(part)
    whole, pieces = ResponseOutput(TOKEN, {}), ResponseOutput(TOKEN, {})
    whole.take(parts)
    whole.finish(status)
    for part in split:
        pieces.take([part])
    pieces.finish(status)
    assert without_random(whole.items) == without_random(pieces.items)


def without_random(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name != "call_id"} for item in items]


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    output = ResponseOutput(TOKEN, {})
    (item,) = told(parsed(output.take([]) + output.finish(COMPLETED)))
    assert item["type"] == "message" and item["content"][0]["text"] == ""
