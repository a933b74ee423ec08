# SPDX-License-Identifier: Apache-2.0
"""Tool calls in an answer, and the text around them, while it arrives in pieces."""

from __future__ import annotations

from enum import Enum, auto

from pontil.runtime.chat.answer_part import AnswerPart, Arguments, Call, Content
from pontil.runtime.chat.calls.body import CallState
from pontil.runtime.chat.calls.format import FENCE, CallFormat
from pontil.runtime.chat.calls.headed_call import Functions
from pontil.runtime.chat.calls.json_scanner import SPACE
from pontil.runtime.chat.marker_search import MarkerSearch
from pontil.runtime.chat.step_parser import Step, StepParser

LIST, LIST_END, COMMA = "[", "]", ","
# Words that may stand between a code fence and a call.
FENCED = ("json", "xml")


class FencedBlock(Enum):
    """The fenced block that the text is in: none, one that may hold a call and is held back, one whose fence went with
    a call, or one that is content, in which nothing is a call without markers."""

    NONE = auto()
    HELD = auto()
    CALLS = auto()
    CONTENT = auto()


class ToolCallParser(StepParser):
    """The result depends on the text alone, not on how it is split. Text that looks like a call and is none is content,
    with all that was held of it. White space around a call belongs to it.

    A call that has begun is reported as far as it came, even if it goes wrong later: `complete` tells whether all are
    whole. The work is in proportion to the text, whatever it is.
    """

    def __init__(self, form: CallFormat, functions: Functions, lenient: bool = False) -> None:
        """With `lenient` calls may lack their markers where the format says so."""
        self.form, self.functions = form, functions
        bare = lenient and form.bare
        openings = (*form.openings, FENCE) if bare else form.openings
        self.words = openings + FENCED if bare else openings
        """Text that may stand before a call."""
        self.search = MarkerSearch(*openings, bare=bare)
        self.block = FencedBlock.NONE
        self.begun = self.ended = 0
        self.identities: set[str] = set()
        self.held: list[str] = []
        """Text that is content unless it becomes a call."""
        self.seen: list[str] = []
        """Text of the possible call."""
        self.part = ""
        """What may be the beginning of a marker."""
        self.ends_line = False
        """True if a line has ended behind the last call or its closing marker."""
        self.in_list = False
        self.call = form.syntax.body(functions)
        self.step: Step = self.seek if form.anywhere else self.open

    @property
    def complete(self) -> bool:
        """Return whether there are calls, and all of them are complete."""
        return 0 < self.begun == self.ended

    def finish(self) -> list[AnswerPart]:
        """Return the parts that were held back, when the answer has ended."""
        parts: list[AnswerPart] = []
        if self.step != self.close:
            held_text = self.search.release() if self.step == self.seek else ""
            self.let_go(f"{held_text}{''.join(self.seen)}{self.part}", parts)
        return parts

    def seek(self, text: str, parts: list[AnswerPart]) -> str:
        """Look for the marker of a call, holding what may belong to it."""
        before, behind = self.search.feed(text)
        if before:
            parts.append(Content(before))
        if behind is None:
            return ""
        held_text = self.search.release()
        if self.search.marker == FENCE and self.block is not FencedBlock.NONE:
            if self.block is FencedBlock.CONTENT:
                parts.append(Content(held_text))
            self.enter(FencedBlock.NONE)
            return behind
        if self.search.marker == FENCE:
            self.enter(FencedBlock.HELD)
        self.held, self.in_list, self.step = [held_text], False, self.open
        return behind

    def enter(self, block: FencedBlock) -> None:
        self.block, self.search.skips_brackets = block, block is FencedBlock.CONTENT

    def open(self, text: str, parts: list[AnswerPart]) -> str:
        """Hold what may stand before a call, up to its first character."""
        remaining_text, self.part = self.part + text, ""
        while remaining_text:
            word = next((known_word for known_word in self.words if remaining_text.startswith(known_word)), None)
            if word is None and any(known_word.startswith(remaining_text) for known_word in self.words):
                self.part = remaining_text
                return ""
            word = word or self.mark_of(remaining_text[0])
            if not word or (word == FENCE and self.block is not FencedBlock.NONE):
                return self.begin(remaining_text, parts)
            if word == FENCE:
                self.enter(FencedBlock.HELD)
            self.held.append(word)
            remaining_text = remaining_text[len(word) :]
        return ""

    def mark_of(self, character: str) -> str:
        """Return the character if it may stand before a call, else nothing."""
        if character in SPACE:
            return character
        if character == LIST and self.form.lists != "never" and not self.in_list:
            self.in_list = True
            return character
        between = (COMMA if self.in_list else "") + self.form.separators
        return character if self.begun and character in between else ""

    def begin(self, text: str, parts: list[AnswerPart]) -> str:
        """Begin to read a possible call."""
        if self.form.lists == "always" and not self.in_list:
            return self.give_up(text, parts)
        self.call, self.seen, self.step = self.form.syntax.body(self.functions, text[0]), [], self.read
        return text

    def read(self, text: str, parts: list[AnswerPart]) -> str:
        position = 0
        while (position := self.call.take_plain(text, position)) < len(text):
            before, state = self.call.state, self.call.take(text[position])
            if state is CallState.WRONG:
                return self.refuse(before, text, position, parts)
            position += 1
            if state is not CallState.POSSIBLE and before is CallState.POSSIBLE:
                self.announce(parts)
            if state is CallState.COMPLETE:
                self.show_arguments(parts)
                self.ended += 1
                self.step, self.ends_line = self.close, False
                return text[position:]
        if self.call.state is CallState.POSSIBLE:
            self.seen.append(text)
        else:
            self.show_arguments(parts)
        return ""

    def announce(self, parts: list[AnswerPart]) -> None:
        self.held, self.seen = [], []
        if self.block is FencedBlock.HELD:
            self.enter(FencedBlock.CALLS)
        identity = self.call.identity if self.call.identity not in self.identities else None
        if identity is not None:
            self.identities.add(identity)
        parts.append(Call(self.begun, str(self.call.name), identity))
        self.begun += 1

    def refuse(self, before: CallState, text: str, position: int, parts: list[AnswerPart]) -> str:
        """Handle text that is no call, or a call that went wrong after it had begun. The wrong character may begin
        another."""
        if before is CallState.BEGUN:
            self.show_arguments(parts)
            self.held, self.seen = [self.call.loose], []
            return self.give_up(text[position:], parts)
        seen_text, self.seen = "".join(self.seen), []
        if self.call.looked_through_again:
            return self.give_up(seen_text + text, parts)
        self.held += (seen_text, text[:position])
        return self.give_up(text[position:], parts)

    def give_up(self, text: str, parts: list[AnswerPart]) -> str:
        """Emit what was held as content, and go on with this text."""
        self.let_go("", parts)
        if self.block is FencedBlock.HELD:
            self.enter(FencedBlock.CONTENT)
        self.in_list = False
        self.step = self.seek if self.form.anywhere else self.tell
        return text

    def let_go(self, text: str, parts: list[AnswerPart]) -> None:
        """Emit the held text, and this, as content."""
        if content := "".join((*self.held, text)):
            parts.append(Content(content))
        self.held = []

    def close(self, text: str, parts: list[AnswerPart]) -> str:
        """Skip the closing markers of a call, which some models forget, and space around them."""
        remaining_text, self.part = self.skip_space(self.part + text), ""
        while remaining_text:
            closings = self.closings
            word = next((closing for closing in closings if remaining_text.startswith(closing)), None)
            if word is None:
                break
            self.in_list = self.in_list and word != LIST_END
            if word == FENCE and self.block is FencedBlock.CALLS:
                self.enter(FencedBlock.NONE)
            self.ends_line = False
            remaining_text = self.skip_space(remaining_text[len(word) :])
        else:
            return ""
        if any(closing.startswith(remaining_text) for closing in closings):
            self.part = remaining_text
            return ""
        self.search.in_line = not self.ends_line
        self.step = self.open if self.in_list or not self.form.anywhere else self.seek
        return remaining_text

    @property
    def closings(self) -> tuple[str, ...]:
        """The markers that may stand behind a call."""
        fence = (FENCE,) if self.block is FencedBlock.CALLS else ()
        end = (LIST_END,) if self.in_list else ()
        return (*self.form.closings, *fence, *end)

    def skip_space(self, text: str) -> str:
        remaining_text = text.lstrip(SPACE)
        self.ends_line = self.ends_line or "\n" in text[: len(text) - len(remaining_text)]
        return remaining_text

    def tell(self, text: str, parts: list[AnswerPart]) -> str:
        parts.append(Content(text))
        return ""

    def show_arguments(self, parts: list[AnswerPart]) -> None:
        if new := self.call.take_arguments():
            parts.append(Arguments(self.begun - 1, new))
