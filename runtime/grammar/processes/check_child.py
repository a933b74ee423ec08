# SPDX-License-Identifier: Apache-2.0
"""The child process in which a finished answer is checked against its JSON schema.

A schema's expressions may take a time that is exponential in the text, its references may recurse, and items may be
compared with each other. Answers are checked where that ends nobody else.

A question is a schema and an answer, answered with the fields of a Verdict.
"""

import json
from collections.abc import Callable

from pontil.runtime.grammar.processes.answer_check import AnswerCheck
from pontil.runtime.grammar.processes.bounded_child import run_child


def main(arguments: list[str]) -> None:
    run_child(arguments, prepare)


def prepare() -> Callable[[str], str]:
    check = AnswerCheck()
    # The first check of a process imports what later ones have.
    check.verdict({"type": "array", "uniqueItems": True, "items": {"pattern": "^(?!a)"}}, '["b"]')

    def answer(question: str) -> str:
        schema, text = json.loads(question)
        verdict = check.verdict(json.loads(schema), text)
        return json.dumps([verdict.state.value, verdict.reason])

    return answer
