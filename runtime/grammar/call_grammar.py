# SPDX-License-Identifier: Apache-2.0
"""Grammars of answers that call tools, in the notation of grammar_text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pontil.runtime.grammar.grammar_text import START, UNTHOUGHT, Thought, behind_thought, quoted


@dataclass(frozen=True, slots=True)
class CallText:
    """One call: an expression for its arguments between two texts, and `rules` that the expression names."""

    begin: str
    arguments: str
    end: str = ""
    rules: str = ""


@dataclass(frozen=True, slots=True)
class CallFrame:
    """The texts around all calls, and the one between two; None if there may be only one call."""

    begin: str = ""
    between: str | None = None
    end: str = ""

    def rule(self, begin: str | None = None) -> str:
        """The rule `calls`, maybe with another text at their beginning."""
        several = "call" if self.between is None else f"call ({literal(self.between)}call)*"
        return f"calls: {literal(self.begin if begin is None else begin)}{several} {literal(self.end)}\n"


def grammar_of_calls(calls: Sequence[CallText], frame: CallFrame, thought: Thought = Thought.NONE) -> str:
    """Only calls, after the given reasoning."""
    return behind_thought(f"{START}calls\n{frame.rule()}{call_rules(calls)}", thought)


def grammar_of_calls_or_form(calls: Sequence[CallText], frame: CallFrame, form: str, thought: Thought) -> str:
    """Calls like `grammar_of_calls`, or the form of another grammar instead, as in `behind_thought`."""
    either = f"{START}calls | form\nform: {form.removeprefix(START)}"
    return behind_thought(f"{either}{frame.rule()}{call_rules(calls)}", thought)


def grammar_of_calls_in_text(
    calls: Sequence[CallText], frame: CallFrame, openings: Sequence[str], thought: Thought
) -> str:
    """Any text, and calls in it. They begin with the first of the openings; none of these ever stands for itself.
    Reasoning, in which any text may stand, comes first."""
    trigger, *other_openings = openings
    many = frame.between is not None
    alone = replace(frame, between=frame.between if frame.begin else None)
    if frame.begin:
        rule = alone.rule(frame.begin.removeprefix(trigger))
    else:
        calls = [replace(call, begin=call.begin.removeprefix(trigger)) for call in calls]
        rule = alone.rule()
    free = f"/(?s:.*)/{UNTHOUGHT[thought]}{''.join(map(without, other_openings))}"
    begin = "(begun calls)* text" if many else "(begun calls)? tail"
    tail_rules = "" if many else f"tail: TAIL\nTAIL: FREE{without(trigger)}\n"
    text = f"begun[lazy]: FREE {quoted(trigger)}\ntext: FREE\nFREE: {free}\n"
    return behind_thought(f"{START}{begin}\n{text}{tail_rules}{rule}{call_rules(calls)}", thought)


def grammar_of_calls_or_text(
    calls: Sequence[CallText], frame: CallFrame, openings: Sequence[str], thought: Thought
) -> str:
    """Calls like `grammar_of_calls`, or any text that does not begin like one."""
    first = (frame.begin or calls[0].begin)[0]
    unlike = "".join(rf" & ~/(?s:[ \t\r\n]*{pattern_of(text)}.*)/" for text in (first, *openings))
    free = f"FREE: /(?s:.*)/{unlike}{UNTHOUGHT[thought]}\n"
    return behind_thought(f"{START}FREE | calls\n{free}{frame.rule()}{call_rules(calls)}", thought)


def without(text: str) -> str:
    return f" & ~/(?s:.*){pattern_of(text)}(?s:.*)/"


def pattern_of(text: str) -> str:
    return re.escape(text).replace("/", r"\/")


def literal(text: str) -> str:
    """The text and a space behind it; nothing for no text."""
    return f"{quoted(text)} " if text else ""


def call_rules(calls: Sequence[CallText]) -> str:
    """The rule `call`: any one of these."""
    parts = [f"{literal(call.begin)}{call.arguments}{' ' + quoted(call.end) if call.end else ''}" for call in calls]
    rules = "".join(f"call_{number}: {part}\n" for number, part in enumerate(parts))
    argument_rules = "".join(dict.fromkeys(call.rules for call in calls))
    return f"call: {' | '.join(f'call_{number}' for number in range(len(parts)))}\n{rules}{argument_rules}"
