# SPDX-License-Identifier: Apache-2.0
"""What an answer has to follow, as a grammar in Lark's notation, which is how it travels to the workers.

The notation is llguidance's dialect: JSON schemas stand in it as `%json`. Nothing is checked here but what would change
the meaning of the text around it; `GrammarCompiler` says whether a grammar can be used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from pontil.runtime.errors import RequestError

# Which token spells a text is the model's choice, also where only one text may come: masks are then a function of the
# text so far, whatever its tokens were.
HEAD = '%llguidance {"no_forcing": true}\n'
# Between two parts of a JSON value: nothing, a space, or a line end and an indent. Without an end to it a small model
# may write spaces for ever.
WHITESPACE = r"\x20|\n[\x20\t]{0,32}"
OPTIONS = {"whitespace_pattern": WHITESPACE}
OPTIONS_KEY = "x-guidance"
# Reading GBNF takes some microseconds a character, in which nobody else is served.
MAX_GBNF_CHARACTERS = 1 << 13
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Tagged:
    """A JSON value that follows `schema`, between two texts, as models write calls of tools."""

    begin: str
    schema: Mapping[str, Any]
    end: str = ""


def grammar_of_schema(schema: Mapping[str, Any]) -> str:
    """A JSON value that follows a JSON schema. Raises RequestError for a schema that sets the library's options."""
    return f"{HEAD}start: {json_part(schema)}\n"


def grammar_of_choices(choices: Sequence[str]) -> str:
    """One of these texts, none of which is empty."""
    return f"{HEAD}start: {' | '.join(map(quoted, choices))}\n"


def grammar_of_regex(pattern: str) -> str:
    """A text that the whole of a regular expression matches: Rust's notation, which has no look-around."""
    return f"{HEAD}start: /{regex_to_lark(pattern)}/\n"


def grammar_of_rules(rules: str) -> str:
    """Rules that somebody wrote, in Lark's notation or in GBNF (`root ::= …`). Raises RequestError for GBNF that cannot
    be read."""
    gbnf = re.search(r"^[ \t]*[\w-]+[ \t]*::=", rules, re.MULTILINE) is not None
    return f"{HEAD}{read_gbnf(rules) if gbnf else rules}\n"


def read_gbnf(rules: str) -> str:
    """The same in Lark's notation."""
    if len(rules) > MAX_GBNF_CHARACTERS:
        raise RequestError(f"rules in GBNF may have at most {MAX_GBNF_CHARACTERS} characters: use Lark's notation")
    try:
        converted: str = gbnf_to_lark(rules)
    except (GbnfToLarkError, IndexError, RecursionError) as error:
        raise RequestError(f"the rules look like GBNF but cannot be read: {error}") from None
    except Exception as error:
        if type(error) is not Exception:  # the library raises nothing narrower for rules that are missing or said twice
            raise
        raise RequestError(f"the rules look like GBNF but cannot be read: {error}") from None
    return converted


def grammar_of_calls(calls: Sequence[Tagged], trigger: str | None = None) -> str:
    """Without a trigger: exactly one of the calls, from the answer's first character to its last. With one: any text,
    and any number of calls in it, each of which begins with the trigger; the trigger never stands for itself."""
    begins = [call.begin if trigger is None else call.begin.removeprefix(trigger) for call in calls]
    parts = [
        " ".join(part for part in (quoted(begin), json_part(call.schema), quoted(call.end)) if part != quoted(""))
        for begin, call in zip(begins, calls, strict=True)
    ]
    rules = "\n".join(f"call_{number}: {part}" for number, part in enumerate(parts))
    names = " | ".join(f"call_{number}" for number in range(len(parts)))
    if trigger is None:
        return f"{HEAD}start: {names}\n{rules}\n"
    return (
        f"{HEAD}start: (begun ({names}))* rest\nbegun[lazy]: TEXT {quoted(trigger)}\nrest: TEXT\n"
        f"TEXT: /(?s:.*)/\n{rules}\n"
    )


def json_part(schema: Mapping[str, Any]) -> str:
    if OPTIONS_KEY in schema:
        raise RequestError(f"{OPTIONS_KEY} is no keyword of JSON schemas: leave it out")
    return f"%json {json.dumps({**schema, OPTIONS_KEY: OPTIONS})}"


def quoted(text: str) -> str:
    return json.dumps(text)
