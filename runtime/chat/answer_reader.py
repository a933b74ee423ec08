# SPDX-License-Identifier: Apache-2.0
"""One choice's answer, split into reasoning, text and tool calls while it arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from pontil.runtime.chat.answer_part import AnswerPart, Call, Content, merged
from pontil.runtime.chat.harmony_parser import HarmonyParser
from pontil.runtime.chat.reasoning_parser import ReasoningParser
from pontil.runtime.chat.tool_call_parser import ToolCallParser


class AnswerReader:
    """Tool calls are looked for in the text only, not in reasoning. `thought_id` is the token that ends reasoning;
    None: no single one. `make_id` gives a call its id where the model gave it none."""

    def __init__(
        self,
        thinking: ReasoningParser | None,
        calls: ToolCallParser | HarmonyParser | None,
        thought_id: int | None = None,
        make_id: Callable[[str, int], str] | None = None,
    ) -> None:
        self.thinking, self.calls, self.thought_id, self.make_id = thinking, calls, thought_id, make_id
        self.thoughts = calls if isinstance(calls, HarmonyParser) else thinking
        self.finished = False
        self.counted = 0
        """Tokens that are known to be reasoning."""
        self.closed = False
        """True if the token that ends reasoning was among them."""

    def feed(self, text: str) -> list[AnswerPart]:
        return self.identified(self.within([Content(text)] if self.thinking is None else self.thinking.feed(text)))

    def finish(self) -> list[AnswerPart]:
        """Return the text that was held back, when the answer has ended."""
        self.finished = True
        parts = [] if self.thinking is None else self.within(self.thinking.finish())
        return self.identified(parts if self.calls is None else [*parts, *self.calls.finish()])

    def within(self, parts: Sequence[AnswerPart]) -> list[AnswerPart]:
        if self.calls is None:
            return list(parts)
        return [
            answer_part
            for part in parts
            for answer_part in (self.calls.feed(part.text) if isinstance(part, Content) else (part,))
        ]

    def identified(self, parts: Iterable[AnswerPart]) -> list[AnswerPart]:
        make = self.make_id
        if make is None:
            return merged(parts)
        return [
            replace(part, identity=part.identity or make(part.name, part.index)) if isinstance(part, Call) else part
            for part in merged(parts)
        ]

    def reason(self, reason: str) -> str:
        """The answer's finish reason, given its worker's `reason`: tool calls are reported only if every one is
        complete."""
        return "tool_calls" if reason == "stop" and self.calls is not None and self.calls.complete else reason

    def reasoning_tokens(self, ids: Sequence[int]) -> int | None:
        """The number of an answer's ids so far that are reasoning, its markers included; call it with all ids each
        time.

        None if that is not known exactly: the text was spelled by other tokens than the markers' own.
        """
        if self.thoughts is None or not self.thoughts.begun:
            return 0
        if self.thought_id is None or not self.thoughts.exact:
            return None
        if not self.closed:
            new = ids[self.counted :]
            self.closed = self.thought_id in new
            self.counted += new.index(self.thought_id) + 1 if self.closed else len(new)
        return None if self.finished and self.closed is not self.thoughts.ended else self.counted
