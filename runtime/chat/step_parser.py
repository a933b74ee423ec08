# SPDX-License-Identifier: Apache-2.0
"""The loop of parsers that read an answer in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pontil.runtime.chat.answer_part import AnswerPart

PORTION = 1024
# A step takes some text, and returns the rest that it did not use.
Step = Callable[[str, list[AnswerPart]], str]


class StepParser:
    """Base of parsers whose state is `step`, the step that reads what comes next."""

    step: Step

    def feed(self, text: str) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        for remaining_text in portions(text):
            while remaining_text:
                remaining_text = self.step(remaining_text, parts)
        return parts


def portions(text: str) -> Iterator[str]:
    """A text in pieces of bounded size: each step of a parser copies the rest of its piece."""
    return (text[begin : begin + PORTION] for begin in range(0, len(text), PORTION))
