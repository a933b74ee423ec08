# SPDX-License-Identifier: Apache-2.0
"""The harmony format of gpt-oss: an answer is a row of messages, each with a channel and maybe a recipient.

Source: OpenAI's description of the harmony response format. A prompt ends with `<|start|>assistant`, so that an answer
begins with the rest of that message's header.
"""

from __future__ import annotations

import re

from pontil.runtime.chat.answer_part import AnswerPart, Arguments, Call, Content, Reasoning
from pontil.runtime.chat.calls.headed_call import Functions, JsonArguments
from pontil.runtime.chat.calls.json_scanner import SPACE, JsonStep
from pontil.runtime.chat.marker_search import MarkerSearch
from pontil.runtime.chat.step_parser import Step, StepParser

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>", START)
# Beginnings of a header; any other text is an answer without one.
FIRSTS = (START, CHANNEL, MESSAGE, CONSTRAIN, "to=functions.")
RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
ANALYSIS = re.compile(r"<\|channel\|>\s*analysis\b")
MAX_HEADER = 512


class HarmonyParser(StepParser):
    """Messages to one of the functions are calls, others of the channel analysis are reasoning, and all others are
    content. The result depends on the text alone, not on how it is split, and the work is in proportion to it."""

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        self.begun = self.ended = False
        """True if there is reasoning, and if it has ended."""
        self.exact = True
        """True while all reasoning is one message, the first."""
        self.calls = self.complete_calls = 0
        self.step: Step = self.look
        self.header = ""
        self.end = MarkerSearch(*ENDS)
        self.arguments = JsonArguments()
        self.name = ""
        self.first = True

    @property
    def inside(self) -> bool:
        """Return whether the message that is read is reasoning."""
        return self.step == self.think

    @property
    def over(self) -> bool:
        """Return whether no reasoning will follow: any message may have another behind it."""
        return False

    @property
    def complete(self) -> bool:
        """Return whether there are calls, and all of them are complete."""
        return 0 < self.calls == self.complete_calls

    def finish(self) -> list[AnswerPart]:
        """Return the parts that were held back, when the answer has ended."""
        if self.step in (self.look, self.read_header):
            begin = self.header.lstrip(SPACE)
            is_header_cut = self.step == self.read_header and (begin.startswith(FIRSTS) or is_prefix(begin))
            return [Content(self.header)] if self.header and not is_header_cut else []
        held_text = self.end.release()
        return (
            [Reasoning(held_text) if self.step == self.think else Content(held_text)]
            if held_text and self.step != self.call
            else []
        )

    def look(self, text: str, parts: list[AnswerPart]) -> str:
        """Look whether the answer begins with a header."""
        self.header += text
        begin = self.header.lstrip(SPACE)
        early = len(self.header) - len(begin) <= MAX_HEADER
        if early and is_prefix(begin):
            return ""
        has_header = early and begin.startswith(FIRSTS)
        remaining_text, self.header = self.header, ""
        self.step = self.read_header if has_header else self.tell
        return remaining_text

    def read_header(self, text: str, parts: list[AnswerPart]) -> str:
        """Read up to the message's text. A header without end is content."""
        self.header += text
        at = self.header.find(MESSAGE)
        if at < 0 and len(self.header) < MAX_HEADER + len(MESSAGE):
            return ""
        if at < 0 or at > MAX_HEADER:
            remaining_text, self.header, self.step = self.header, "", self.tell
            parts.append(Content(remaining_text[:MAX_HEADER]))
            return remaining_text[MAX_HEADER:]
        header, remaining_text = self.header[:at], self.header[at + len(MESSAGE) :]
        self.header = ""
        recipient = RECIPIENT.search(header)
        if recipient is not None and recipient[1] in self.functions:
            self.name, self.arguments, self.step = recipient[1], JsonArguments(), self.call
        elif recipient is not None:
            parts.append(Content(header.strip(SPACE) + MESSAGE))
            self.step = self.tell
        else:
            self.open(ANALYSIS.search(header) is not None)
        self.first = False
        return remaining_text

    def open(self, thought: bool) -> None:
        self.step = self.think if thought else self.tell
        self.exact = self.exact and (not thought or self.first)
        self.begun = self.begun or thought

    def think(self, text: str, parts: list[AnswerPart]) -> str:
        return self.pass_on(text, parts, Reasoning)

    def tell(self, text: str, parts: list[AnswerPart]) -> str:
        return self.pass_on(text, parts, Content)

    def pass_on(self, text: str, parts: list[AnswerPart], kind: type[Reasoning] | type[Content]) -> str:
        """Emit the message's text up to its end."""
        before, behind = self.end.feed(text)
        if before:
            parts.append(kind(before))
        return "" if behind is None else self.turn(behind)

    def turn(self, behind: str) -> str:
        """Expect the next message's header behind a message."""
        self.ended = self.ended or self.step == self.think
        self.end.release()
        self.step = self.read_header
        return behind

    def call(self, text: str, parts: list[AnswerPart]) -> str:
        """Read the arguments; text that is none is content."""
        position, step, has_begun = 0, JsonStep.INSIDE, bool(self.arguments.made or not self.arguments.scanner.fresh)
        while (position := self.arguments.plain_end(text, position)) < len(text):
            if not has_begun and text[position] in SPACE:
                position += 1
                continue
            step = self.arguments.take(text[position])
            if step is JsonStep.WRONG:
                break
            position += 1
            if not has_begun:
                parts.append(Call(self.calls, self.name))
                self.calls, has_begun = self.calls + 1, True
            if step is JsonStep.LAST:
                break
        if new := "".join(self.arguments.made):
            self.arguments.made.clear()
            parts.append(Arguments(self.calls - 1, new))
        if step is JsonStep.LAST:
            self.complete_calls += 1
        if step is not JsonStep.INSIDE:
            self.step = self.tell
        return text[position:]


def is_prefix(text: str) -> bool:
    return any(first.startswith(text) for first in FIRSTS)
