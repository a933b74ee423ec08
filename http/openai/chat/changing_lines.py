# SPDX-License-Identifier: Apache-2.0
"""Lines at the beginning of prompts that agents change from turn to turn, and what is done with each, so that what
comes after them is found in prefix caches (docs/decisions/104). Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pontil.http.openai.chat.prompt import ChatPrompt, Message


class LinePlace(Enum):
    """The place that a line gets. What changes with the day or the session goes before the first text of the user:
    behind the system message and the tools, and at the same place in every turn of a session. What changes with the
    clock goes behind the last text of the user or a tool, so that nothing but the answer comes after it."""

    OUT = "left-out"
    FIRST_TURN = "moved-to-first-turn"
    LAST_TURN = "moved-to-last-turn"


@dataclass(frozen=True, slots=True)
class KnownLine:
    """A line that is known. Its pattern is tried in a message that contains `mark`, `within` a block where that is
    named, and takes the line's end along. A line that says something to the model is moved, never left out."""

    name: str
    client: str
    mark: str
    pattern: re.Pattern[str]
    place: LinePlace
    within: tuple[str, str] | None = None


def known(pattern: str) -> re.Pattern[str]:
    """Compile the pattern of a whole line. Parts of it that repeat are bounded, or end where the next one begins."""
    return re.compile(pattern, re.MULTILINE | re.ASCII)


DAY = r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
WORDS = rf"{DAY}, {MONTH} \d{{1,2}}, \d{{4}}"
NUMBERS = r"\d{4}-\d\d-\d\d"
SHORT = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d\d \d{4}"

KNOWN_LINES = (
    KnownLine(
        "claude-code-billing",
        "Claude Code: who is billed, with a digest of the request",
        "x-anthropic-billing-header:",
        known(r"\Ax-anthropic-billing-header:(?: \w{1,64}=[^;\s]{0,256};)+[ \n]*"),
        LinePlace.OUT,
    ),
    KnownLine(
        "env-date",
        "older Claude Code, opencode, Kilo Code and Crush: the date in <env>",
        "<env>\n",
        known(rf"^ *Today's date: (?:{SHORT}|{NUMBERS}|\d{{1,2}}/\d{{1,2}}/\d{{4}})\n"),
        LinePlace.FIRST_TURN,
        ("<env>\n", "\n</env>"),
    ),
    KnownLine(
        "claude-code-date",
        "Claude Code, where its context is sent as a system message",
        "# currentDate\n",
        known(rf"^# currentDate\nToday's date is {NUMBERS}\.(?:\n|\Z)"),
        LinePlace.FIRST_TURN,
    ),
    KnownLine(
        "hermes-session",
        "Hermes Agent: when the session began, and its id",
        "Conversation started: ",
        known(
            rf"^Conversation started: {WORDS}(?: \d\d:\d\d [AP]M)?(?: \([^()\n]{{1,80}}\))?"
            r"(?:\nSession ID: \S{1,128})?(?:\n|\Z)"
        ),
        LinePlace.FIRST_TURN,
    ),
    KnownLine(
        "pi-date",
        "pi: the date",
        "\nCurrent working directory: ",
        known(rf"^Current date: {NUMBERS}\n(?=Current working directory: )"),
        LinePlace.FIRST_TURN,
    ),
    KnownLine(
        "pi-time",
        "older pi: the time",
        "\nCurrent working directory: ",
        known(
            rf"^Current date and time: {WORDS}(?: at|,) \d\d:\d\d:\d\d [AP]M [^\n]{{1,40}}\n"
            r"(?=Current working directory: )"
        ),
        LinePlace.LAST_TURN,
    ),
    KnownLine(
        "goose-time",
        "goose: the time",
        "AI agent called ",
        known(rf"^The current date is {NUMBERS} \d\d:\d\d:\d\d\.(?:\n|\Z)"),
        LinePlace.LAST_TURN,
    ),
    KnownLine(
        "anythingllm-time",
        "AnythingLLM: the time, in its default prompt",
        "Given the following conversation, relevant context, and a follow up question",
        known(rf"(?<=\.) ?The current date and time is {WORDS} \d{{1,2}}:\d\d [AP]M\."),
        LinePlace.LAST_TURN,
    ),
)
LEADING = ("system", "developer")
# Between a message's text and a line that is moved to it.
PARAGRAPH = "\n\n"


def settled(prompt: ChatPrompt, rows: Sequence[KnownLine]) -> tuple[ChatPrompt, dict[str, str]]:
    """Return the prompt with known lines of its leading system messages in their places, and what was done with each.
    No other text is looked at. Without a message of the user nothing is moved, and without any other message the
    prompt stays as it is."""
    messages = list(prompt.messages)
    first = next((at for at, message in enumerate(messages) if message["role"] not in LEADING), len(messages))
    if first == len(messages):
        return prompt, {}
    users = [at for at, message in enumerate(messages) if message["role"] == "user"]
    usable = [row for row in rows if users or row.place is LinePlace.OUT]
    taken: list[tuple[KnownLine, str]] = []
    for at in range(first):
        if (text := without(messages[at]["content"], usable, taken)) != messages[at]["content"]:
            messages[at] = messages[at] | {"content": text}
    if not taken:
        return prompt, {}
    moved = {place: [line for row, line in taken if row.place is place] for place in LinePlace}
    if dates := moved[LinePlace.FIRST_TURN]:
        messages[users[0]] = with_text(messages[users[0]], dates, behind=False)
    if times := moved[LinePlace.LAST_TURN]:
        last = max(at for at, message in enumerate(messages) if message["role"] in ("user", "tool"))
        is_continued = prompt.continue_final_message and last == len(messages) - 1
        messages[last] = with_text(messages[last], times, behind=not is_continued)
    # A message of nothing but lines that are gone is gone.
    pairs = zip(messages, prompt.messages, strict=True)
    rest = tuple(message for message, sent in pairs if message is sent or message["content"])
    return replace(prompt, messages=rest), {row.name: row.place.value for row, _ in taken}


def without(text: str, rows: Sequence[KnownLine], taken: list[tuple[KnownLine, str]]) -> str:
    """Return a text without its known lines, which are added to `taken`. Takes time in proportion to its length."""
    for row in rows:
        if row.mark in text:
            begin, end = block_of(text, row.within)
            pieces, at = [text[:begin]], begin
            for match in row.pattern.finditer(text, begin, end):
                taken.append((row, match[0].strip()))
                pieces.append(text[at : match.start()])
                at = match.end()
            text = "".join((*pieces, text[at:]))
    return text


def block_of(text: str, within: tuple[str, str] | None) -> tuple[int, int]:
    """Return where the first block begins and ends that is framed so; an empty place where there is none."""
    if within is None:
        return 0, len(text)
    begin = text.find(within[0])
    end = -1 if begin < 0 else text.find(within[1], begin)
    return (begin, end + 1) if end >= 0 else (0, 0)


def with_text(message: Message, lines: Sequence[str], *, behind: bool) -> Message:
    """Return a message with these lines as a paragraph before or behind its text."""
    text, paragraph = message["content"], "\n".join(lines)
    if not text:
        return message | {"content": paragraph}
    return message | {"content": PARAGRAPH.join((text, paragraph) if behind else (paragraph, text))}
