# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the child processes that work on clients' texts: the same work, done at once in this process, which
takes its time, and at times crashes or hangs as a hostile text would make it."""

import asyncio
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from virtual_time import HERE

from pontil.runtime.grammar.processes.bounded_process import AnswerCheckProcess, BoundedProcess, GrammarProcess

# Shares of questions that crash it, and at which it hangs; seconds of the others.
CRASHES, HANGS = 0.04, 0.03
SECONDS = (0.001, 0.05)


@cache
def answerer(module: str) -> Callable[[str], str]:
    made: Callable[[str], str] = import_module(module).prepare()
    return made


async def ask(process: BoundedProcess, question: str) -> str | None:
    chance = HERE.world.random("bounded")
    draw = chance.random()
    if draw < HANGS:
        await asyncio.sleep(process.timeout)
        raise asyncio.TimeoutError
    await asyncio.sleep(chance.uniform(*SECONDS))
    return None if draw < HANGS + CRASHES else answerer(process.module)(question)


def answer_in_this_process() -> None:
    """Install the stand-in, and prepare once what every seed uses."""
    untyped: Any = BoundedProcess
    untyped.ask = ask
    for kind in (GrammarProcess, AnswerCheckProcess):
        answerer(kind.module)
