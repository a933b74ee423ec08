# SPDX-License-Identifier: Apache-2.0
"""Lines that agents change from turn to turn get places behind what is stable, and nothing else is touched. The system
prompts are shaped as the clients shape them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.http.openai.chat.changing_lines import KNOWN_LINES, LinePlace, settled
from pontil.http.openai.chat.prompt import ChatPrompt
from pontil.http.openai.chat.request import read_chat

BILLING = "x-anthropic-billing-header: cc_version=2.1.177.{0}; cc_entrypoint=sdk-cli; cch={0};"
CLAUDE = "You are Claude Code, Anthropic's official CLI for Claude.\n\nBe brief."
ENV = "Be brief.\n<env>\n  Platform: linux\n  Today's date: {}\n</env>\n<files>\n  a.py\n</files>"
PI = "You are an expert coding assistant operating inside pi.\n{}\nCurrent working directory: /home/me"
HERMES = "Be brief.\n\nConversation started: {}\nSession ID: {}\nModel: m"
DATED = HERMES.replace("\nSession ID: {}", "")
GOOSE = "You are a general-purpose AI agent called goose.\n\nThe current date is {}.\n\ngoose uses LLM providers."
LLM = (
    "Given the following conversation, relevant context, and a follow up question, reply with an answer.{} "
    "Return only your response."
)
SENTENCE = " The current date and time is {}."
# The name of a line, a system prompt with places for it, and what stands there in two turns.
SHAPES: list[tuple[str, str, str, str]] = [
    ("claude-code-billing", BILLING + "\n\n" + CLAUDE, "36ee5", "0aaa9"),
    ("claude-code-billing", BILLING + "\n" + CLAUDE, "a51", "45f"),
    ("claude-code-billing", BILLING + CLAUDE, "defa0", "1c8b4"),
    ("env-date", ENV, "Thu Oct 30 2025", "Fri Oct 31 2025"),
    ("env-date", ENV.replace("  T", "T"), "2025-10-30", "2025-10-31"),
    ("env-date", ENV, "1/9/2026", "11/10/2026"),
    ("claude-code-date", "Be brief.\n# currentDate\nToday's date is {}.\n\nMore.", "2026-05-19", "2026-05-20"),
    ("hermes-session", HERMES.replace("{}", "Tuesday, March 18, 2026 02:30 AM", 1), "abc", "8d-f"),
    (
        "hermes-session",
        HERMES.replace("\nSession ID: {}", ""),
        "Tuesday, May 05, 2026 (Europe/Rome, UTC+02:00)",
        "Friday, May 08, 2026",
    ),
    ("pi-date", PI.format("Current date: {}"), "2026-06-09", "2026-06-10"),
    ("pi-time", PI.format("Current date and time: Monday, March 9, 2026 at 06:0{}:31 PM PDT"), "0", "7"),
    ("pi-time", PI.format("Current date and time: Tuesday, June 9, 2026, 03:0{}:20 PM +03:00"), "4", "5"),
    ("goose-time", GOOSE, "2026-02-01 10:00:01", "2026-02-01 10:01:59"),
    ("anythingllm-time", LLM.format(SENTENCE), "Thursday, September 17, 2026 2:05 PM", "Friday, May 1, 2026 11:59 AM"),
]
ROWS = {row.name: row for row in KNOWN_LINES}
TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}]


def chat(*messages: dict[str, Any]) -> ChatPrompt:
    return read_chat({"messages": list(messages)}, 1000).prompt


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(prompt: ChatPrompt) -> str:
    return "\n".join(message["content"] for message in prompt.messages)


@pytest.mark.parametrize(("name", "text", "one", "other"), SHAPES)
def test_what_comes_before_a_changing_line_is_alike_in_every_turn(name: str, text: str, one: str, other: str) -> None:
    filled = text.replace("{}", "{0}")
    first, found = settled(chat(system(filled.format(one)), user("hi")), KNOWN_LINES)
    second, again = settled(chat(system(filled.format(other)), *TURNS, user("go on")), KNOWN_LINES)
    place = ROWS[name].place
    assert found == again == {name: place.value}
    assert first.messages[0] == second.messages[0], "the system message is stable"
    if place is LinePlace.OUT:
        assert said(first) == f"{CLAUDE}\nhi"
    elif place is LinePlace.FIRST_TURN:
        assert first.messages[1]["content"].endswith("\n\nhi") and one in first.messages[1]["content"]
        assert other in second.messages[1]["content"] and second.messages[3]["content"] == "go on"
    else:
        assert second.messages[1] == user("hi"), "what was said before is as it was"
        assert second.messages[3]["content"].startswith("go on\n\n") and other in second.messages[3]["content"]
    assert settled(first, KNOWN_LINES) == (first, {}), "lines in their places stay there"


@pytest.mark.parametrize(("name", "text", "one", "other"), SHAPES)
def test_nothing_that_says_something_is_lost(name: str, text: str, one: str, other: str) -> None:
    prompt = chat(system(text.replace("{}", "{0}").format(one)), user("hi"))
    kept = sorted(said(settled(prompt, KNOWN_LINES)[0]).split())
    words = sorted(said(prompt).split())
    assert kept == words or (name == "claude-code-billing" and "hi" in kept)


@pytest.mark.parametrize(
    "text",
    [
        f"See how {BILLING.format('36ee5')} is sent",
        f"# Notes\n{BILLING.format('36ee5')}\n",
        "x-anthropic-billing-header: is a line that I want to know more of.",
        "Today's date: 2026-05-19\nUser: hi",
        "<env>\nPlatform: linux\n</env>\nToday's date: 2026-05-19",
        "<env>\nToday's date: 2026-05-19\nPlatform: linux",
        "<env>\nToday's date: the 19th of May\n</env>",
        "Today's date is 2026-05-19.",
        "Conversation started: yesterday\nSession ID: 7",
        "Session ID: 7",
        "Current date: 2026-06-09",
        "The current date is 2026-02-01 10:00:01.",
        "The current date and time is Thursday, September 17, 2026 2:05 PM.",
    ],
)
def test_other_text_is_left_as_it_is(text: str) -> None:
    prompt = chat(system(text), user("hi"))
    assert settled(prompt, KNOWN_LINES) == (prompt, {})


@pytest.mark.parametrize(("name", "text", "one", "other"), SHAPES)
def test_only_leading_system_messages_are_looked_at(name: str, text: str, one: str, other: str) -> None:
    known = text.replace("{}", "{0}").format(one)
    for prompt in (
        chat(user(known)),
        chat(user("hi"), system(known)),
        chat(system(known)),
        chat(system("x"), user("hi"), {"role": "assistant", "content": known}, user("go on")),
    ):
        assert settled(prompt, KNOWN_LINES) == (prompt, {})


def test_blocks_may_be_messages_of_their_own() -> None:
    """Gateways make a message of each block: one that is empty then is gone, and only that one."""
    prompt = chat(system(""), system(BILLING.format("36ee5")), {"role": "developer", "content": CLAUDE}, user("hi"))
    made, _ = settled(prompt, KNOWN_LINES)
    assert [message["content"] for message in made.messages] == ["", CLAUDE, "hi"]


def test_a_text_that_is_continued_keeps_its_end() -> None:
    sent = {"messages": [system(GOOSE.format("2026-02-01 10:00:01")), user("It is")], "continue_final_message": True}
    made, _ = settled(read_chat(sent, 1000).prompt, KNOWN_LINES)
    assert made.messages[-1]["content"] == "The current date is 2026-02-01 10:00:01.\n\nIt is"


def test_a_tool_may_have_spoken_last() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turns = [
        user("hi"),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": ""},
        {"role": "assistant", "content": "So"},
    ]
    made, _ = settled(chat(system(GOOSE.format("2026-02-01 10:00:01")), *turns), KNOWN_LINES)
    assert [message.get("content") for message in made.messages][1:] == [
        "hi",
        None,
        "The current date is 2026-02-01 10:00:01.",
        "So",
    ]


PIECES = [row.mark for row in KNOWN_LINES] + [" ", "\n", "a", "</env>"]
PIECES += [BILLING, "Today's date: 2026-05-19", "Current date: 2026-06-09"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_any_text_can_be_read(text: str) -> None:
    prompt = chat(system(text), user("hi"))
    made, found = settled(prompt, KNOWN_LINES)
    assert (made == prompt) is not bool(found)
    assert settled(made, KNOWN_LINES)[0].messages[-1]["content"].endswith("hi")


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).parents[4] / "docs" / "guide" / "messages.md").read_text()
    for row in KNOWN_LINES:
        says = row.client.replace("<env>", "`<env>`")
        assert f"| `{row.name}` | {says} | {row.place.value.replace('-', ' ').replace(' to ', ' to the ')} |" in page
