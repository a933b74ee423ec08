# SPDX-License-Identifier: Apache-2.0
"""The required form of an answer, as a grammar in Lark's notation, in which it travels to the workers.

The notation is llguidance's dialect: JSON schemas stand in it as `%json`. Only text that would change the meaning of
the text around it is checked here; `GrammarCompiler` decides whether a grammar can be used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.intersections import check_rules, check_schema

# The model chooses the tokens that spell a text, also where only one text is allowed: masks are then a function of the
# text so far, however it was tokenized.
HEAD = '%llguidance {"no_forcing": true}\n'
START = f"{HEAD}start: "
# Between two parts of a JSON value: nothing, a space, or a line end and an indent. Without a bound a small model may
# write spaces for ever.
WHITESPACE = r"\x20|\n[\x20\t]{0,32}"
OPTIONS = {"whitespace_pattern": WHITESPACE}
OPTIONS_KEY = "x-guidance"
# Reading GBNF takes some microseconds a character, and blocks all other requests meanwhile.
MAX_GBNF_CHARACTERS = 1 << 13
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class Thought(Enum):
    """Reasoning before an answer: none, begun by the model, or begun already by the prompt; or a message of its own, in
    the harmony format."""

    NONE = auto()
    POSSIBLE = auto()
    BEGUN = auto()
    MESSAGE = auto()


TEXT = "TEXT: /(?s:.*)/\n"
LEADS: Mapping[Thought, str] = {
    Thought.NONE: "",
    Thought.POSSIBLE: '("<think>" thought GAP)? ',
    Thought.BEGUN: "thought GAP ",
    Thought.MESSAGE: '("<|channel|>analysis<|message|>" thought "<|start|>assistant")? ',
}
# A text that may follow optional reasoning must not begin like reasoning.
UNTHOUGHT: Mapping[Thought, str] = {
    Thought.NONE: "",
    Thought.POSSIBLE: r" & ~/(?s:[ \t\r\n]*<think>.*)/",
    Thought.BEGUN: "",
    Thought.MESSAGE: "",
}
THOUGHT_RULES = f'thought[lazy]: TEXT "</think>"\nGAP: /[ \\n]{{0,4}}/\n{TEXT}'
MESSAGE_RULES = f'thought[lazy]: TEXT "<|end|>"\n{TEXT}'


def grammar_of_schema(schema: Mapping[str, Any]) -> str:
    """A JSON value that follows a JSON schema. Raises RequestError for a schema that sets the library's options."""
    return f"{START}{json_part(schema)}\n"


def grammar_of_choices(choices: Sequence[str]) -> str:
    """One of these texts, none of which is empty."""
    return f"{START}{' | '.join(map(quoted, choices))}\n"


def grammar_of_regex(pattern: str) -> str:
    """A text that fully matches a regular expression in Rust's notation, which has no look-around."""
    return f"{START}/{regex_to_lark(pattern)}/\n"


def grammar_of_rules(rules: str) -> str:
    """Rules of a client, in Lark's notation or in GBNF (`root ::= …`). Raises RequestError for GBNF that cannot be
    read, and for rules that would take too long to follow."""
    check_rules(rules)
    gbnf = re.search(r"^[ \t]*[\w-]+[ \t]*::=", rules, re.MULTILINE) is not None
    return f"{HEAD}{read_gbnf(rules) if gbnf else rules}\n"


def behind_thought(grammar: str, thought: Thought) -> str:
    """One of the grammars of this module, except a client's rules, with reasoning before it."""
    assert grammar.startswith(START)
    if thought is Thought.NONE:
        return grammar
    rules = MESSAGE_RULES if thought is Thought.MESSAGE else THOUGHT_RULES
    return f"{START}{LEADS[thought]}value\nvalue: {grammar.removeprefix(START)}{rules}"


def in_final_message(grammar: str) -> str:
    """One of these grammars as the final message of an answer in the harmony format."""
    return f'{START}"<|channel|>final<|message|>" final\nfinal: {grammar.removeprefix(START)}'


def is_json(grammar: str) -> bool:
    """Return whether all of a text that follows one of these grammars is a JSON value, but for reasoning before it and
    the head of its message."""
    return grammar.startswith(f"{START}%json ") or "\nvalue: %json " in grammar or "\nfinal: %json " in grammar


def read_gbnf(rules: str) -> str:
    """Translate GBNF into Lark's notation."""
    if len(rules) > MAX_GBNF_CHARACTERS:
        raise RequestError(f"rules in GBNF may have at most {MAX_GBNF_CHARACTERS} characters: use Lark's notation")
    try:
        lark_rules: str = gbnf_to_lark(rules)
    except (GbnfToLarkError, IndexError, RecursionError) as error:
        raise RequestError(f"the rules look like GBNF but cannot be read: {error}") from None
    except Exception as error:
        if type(error) is not Exception:  # the library raises nothing narrower for missing or duplicate rules
            raise
        raise RequestError(f"the rules look like GBNF but cannot be read: {error}") from None
    return lark_rules


def json_part(schema: Mapping[str, Any]) -> str:
    if OPTIONS_KEY in schema:
        raise RequestError(f"{OPTIONS_KEY} is no keyword of JSON schemas: leave it out")
    check_schema(schema)
    return f"%json {json.dumps({**schema, OPTIONS_KEY: OPTIONS})}"


def quoted(text: str) -> str:
    return json.dumps(text)


# The most members of an object, and items of a list in it, by the number of objects around.
MOST_MEMBERS = (128, 64, 32, 32, 16, 16, 8, 8)
MOST_ITEMS = (512, 256, 128, 64, 32, 16, 8, 8)
FLAT = "value"


def bounded_object() -> dict[str, Any]:
    flat = {"type": ["string", "number", "boolean", "null"]}
    objects = {name(level): object_at(level) for level in range(len(MOST_MEMBERS))}
    return {"$ref": reference(name(0)), "$defs": {FLAT: flat} | objects}


def object_at(level: int) -> dict[str, Any]:
    """Return the schema of an object in `level` others. A list in it holds objects, flat values and lists of these."""
    row = {"type": "array", "items": {"$ref": reference(FLAT)}, "maxItems": MOST_ITEMS[level]}
    inner = [{"$ref": reference(FLAT)}]
    if level + 1 < len(MOST_MEMBERS):
        inner.append({"$ref": reference(name(level + 1))})
    several = {"type": "array", "items": {"anyOf": [*inner, row]}, "maxItems": MOST_ITEMS[level]}
    value = {"anyOf": [*inner, several]}
    return {"type": "object", "additionalProperties": value, "maxProperties": MOST_MEMBERS[level]}


def name(level: int) -> str:
    return f"object{level}"


def reference(name: str) -> str:
    return f"#/$defs/{name}"
