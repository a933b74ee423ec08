# SPDX-License-Identifier: Apache-2.0
"""Separate a model's reasoning from its answer, while both arrive in pieces."""

from __future__ import annotations

from collections.abc import Callable

from pontil.runtime.chat.answer_part import AnswerPart, Content, Reasoning
from pontil.runtime.chat.calls.json_scanner import SPACE
from pontil.runtime.chat.marker_search import MarkerSearch

THINK, THOUGHT = "<think>", "</think>"
Step = Callable[[str], list[AnswerPart]]


class ReasoningParser:
    """An answer begins with `<think>` … `</think>` or has no reasoning; if the prompt has `opened` it already, the
    answer begins within. White space around the markers belongs to them.

    The result depends on the text alone, not on how it is split.
    """

    def __init__(self, opened: bool = False) -> None:
        self.begun = opened
        """True if there is reasoning."""
        self.ended = False
        """True if the reasoning has ended."""
        self.exact = True
        """True if the reasoning is all text up to its end."""
        self.end = MarkerSearch(THOUGHT)
        self.space: list[str] = []
        """White space before the first character."""
        self.held = ""
        self.step: Step = self.open if opened else self.look

    @property
    def inside(self) -> bool:
        """Return whether reasoning has begun and not ended."""
        return self.begun and not self.ended

    @property
    def over(self) -> bool:
        """Return whether no reasoning will follow."""
        return self.ended or self.step == self.tell

    def feed(self, text: str) -> list[AnswerPart]:
        return self.step(text)

    def look(self, text: str) -> list[AnswerPart]:
        """Look whether the answer begins with reasoning."""
        text = self.held + text
        self.held = text.lstrip(SPACE)
        self.space.append(text.removesuffix(self.held))
        if self.held.startswith(THINK):
            return self.turn(self.open, self.held[len(THINK) :])
        if THINK.startswith(self.held):
            return []
        return self.turn(self.tell, self.release())

    def open(self, text: str) -> list[AnswerPart]:
        """Skip space before the reasoning."""
        self.begun = True
        begin = text.lstrip(SPACE)
        return self.turn(self.think, begin) if begin else []

    def think(self, text: str) -> list[AnswerPart]:
        thought, behind = self.end.feed(text)
        reasoning_parts: list[AnswerPart] = [Reasoning(thought)] if thought else []
        if behind is None:
            return reasoning_parts
        self.ended = True
        self.end.release()
        return reasoning_parts + self.turn(self.close, behind)

    def close(self, text: str) -> list[AnswerPart]:
        """Skip space before the answer."""
        begin = text.lstrip(SPACE)
        return self.turn(self.tell, begin) if begin else []

    def tell(self, text: str) -> list[AnswerPart]:
        return [Content(text)] if text else []

    def turn(self, step: Step, text: str) -> list[AnswerPart]:
        self.step = step
        return step(text)

    def release(self) -> str:
        held_text, self.space, self.held = "".join((*self.space, self.held)), [], ""
        return held_text

    def finish(self) -> list[AnswerPart]:
        """Return the text that was held back, when the answer has ended."""
        if self.step == self.look:
            return self.turn(self.tell, self.release())
        held_text = self.end.release() if not self.ended else ""
        return [Reasoning(held_text)] if held_text else []
