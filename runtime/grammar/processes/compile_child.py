# SPDX-License-Identifier: Apache-2.0
"""The child process in which a client's grammar is compiled first, so that a crash there hits no other request.

llguidance follows names (rules, terminals, `$ref`) by native recursion of any depth: a few thousand of them in a row
overflow a thread's stack, which is SIGSEGV and no exception. Only compiling recurses; computing masks and freeing a
grammar do not. It also intersects regular expressions in a time and memory that no fuel bounds.

A question is a grammar, answered with a reason, empty for a grammar that can be used; or a JSON schema, answered with
its RelaxedSchema or a reason.
"""

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.byte_matcher import byte_words
from pontil.runtime.grammar.grammar import LIMITS, SILENT, check_grammar
from pontil.runtime.grammar.grammar_text import grammar_of_schema
from pontil.runtime.grammar.processes.bounded_child import run_child
from pontil.runtime.grammar.schema_place import Place
from pontil.runtime.grammar.schema_relaxation import SchemaRelaxation, choices_in, coerced, described

GRAMMAR, SCHEMA = "g", "s"
WALK_BYTES = 32
# Trials by which the `oneOf` are found that are not held; beyond, all of them are taken for such.
MOST_TRIALS = 16


@dataclass(frozen=True, slots=True)
class RelaxedSchema:
    """A schema, as JSON, that a grammar holds and that allows whatever another one allows. `left_out` names the first
    keyword that it does not have, and its place; `unknown_format` the first format that nobody checks. Both are empty
    where there is none."""

    schema: str
    left_out: str = ""
    unknown_format: str = ""


def main(arguments: list[str]) -> None:
    run_child(arguments, prepare)


def prepare() -> Callable[[str], str]:
    return partial(answer, byte_words())


def answer(words: LLTokenizer, question: str) -> str:
    kind, text = question[:1], question[1:]
    return judged(text, words) if kind == GRAMMAR else json.dumps(relaxed(json.loads(text), words))


def judged(text: str, words: LLTokenizer) -> str:
    """Return the reason why a grammar cannot be used, empty if it can. Every library call of a worker is made once;
    special tokens, which only a model's own vocabulary has, may end the trial early."""
    try:
        check_grammar(text)
    except RequestError as error:
        return str(error)
    matcher = LLMatcher(words, text, log_level=SILENT, limits=LIMITS)
    walk(matcher.deep_copy())
    return ""


def walk(matcher: LLMatcher) -> None:
    """Generate a few bytes of a text that follows the grammar, as a sequence would."""
    source = random.Random(0)
    for _ in range(WALK_BYTES):
        if matcher.is_error() or matcher.is_stopped():
            break
        mask = int.from_bytes(matcher.compute_bitmask()[:32], "little")
        possible = [number for number in range(256) if mask >> number & 1]
        if not possible or not matcher.consume_token(source.choice(possible)):
            break


def relaxed(schema: dict[str, Any], words: LLTokenizer) -> dict[str, str]:
    """Return the fields of a RelaxedSchema, or a `reason`."""
    relaxation = SchemaRelaxation(schema, is_held)
    if not isinstance(relaxation.schema, dict):
        return {"reason": "no value can follow the schema"}
    places = unheld_choices(relaxation.schema)
    coerced_schema = coerced(relaxation.schema, places)
    if reason := judged(grammar_of_schema(coerced_schema), words):
        return {"reason": reason}
    left_out = [*relaxation.left_out, *((*place, "oneOf") for place in places)]
    return asdict(RelaxedSchema(json.dumps(coerced_schema), first(left_out), first(relaxation.unknown_formats)))


def first(places: list[Place]) -> str:
    return described(places[0]) if places else ""


def is_held(schema: Any) -> bool:
    try:
        check_grammar(grammar_of_schema(schema))
    except RequestError:
        return False
    return True


def unheld_choices(schema: dict[str, Any]) -> list[Place]:
    """Return the places of the `oneOf` whose alternatives overlap, as far as the library can tell."""
    places = choices_in(schema)
    if not places or is_held(schema):
        return []
    if len(places) > MOST_TRIALS:
        return places
    return [
        place
        for place in places
        if not is_held(coerced(schema, [other_place for other_place in places if other_place != place]))
    ]
