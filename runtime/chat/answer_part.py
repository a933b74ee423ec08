# SPDX-License-Identifier: Apache-2.0
"""The parts of an answer: text for the reader, reasoning, and tool calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """More of the text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the reasoning before the text."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """The beginning of a tool call. Calls are counted from 0. `identity` is the call's id, if its format has one of its
    own."""

    index: int
    name: str
    identity: str | None = None


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments, as JSON: an object, once the call is complete."""

    index: int
    text: str


AnswerPart = Content | Reasoning | Call | Arguments


def merged(parts: Iterable[AnswerPart]) -> list[AnswerPart]:
    """Join neighbours of one kind, and leave out empty parts."""
    merged_parts: list[AnswerPart] = []
    for part in parts:
        last = merged_parts[-1] if merged_parts else None
        if isinstance(part, Content) and isinstance(last, Content):
            merged_parts[-1] = Content(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            merged_parts[-1] = Reasoning(last.text + part.text)
        elif isinstance(part, Arguments) and isinstance(last, Arguments) and part.index == last.index:
            merged_parts[-1] = Arguments(part.index, last.text + part.text)
        elif isinstance(part, Call) or part.text:
            merged_parts.append(part)
    return merged_parts
