# SPDX-License-Identifier: Apache-2.0
"""A worker's use of grammars, as a program that may crash. Each line of input is a grammar as JSON, compiled in a
thread with half of GrammarManager's stack, then followed and freed in a thread with a very small one. Prints `ok` after
each."""

import json
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import app  # noqa: F401

T = TypeVar("T")
SMALL_STACK = 256 << 10
STEPS = 24


def main() -> None:
    from pontil.runtime.errors import RequestError
    from pontil.runtime.grammar.grammar import Grammar, GrammarCompiler
    from pontil.runtime.worker.generate.grammar_manager import STACK_BYTES

    class Letters:
        vocab_size, special_ids = 256, frozenset[int]()

        def token_bytes(self, number: int) -> bytes:
            return bytes([number]) if number < 256 else b""

    compiler = GrammarCompiler(Letters(), 257)  # type: ignore[arg-type]  # the only methods that it needs
    made: list[Grammar] = []

    def follow(grammar: Grammar) -> None:
        guide, output, source = grammar.guide(frozenset({256})), list[int](), random.Random(1)
        for _ in range(STEPS):
            (mask,) = guide.masks(output)
            possible = [number for number in range(256) if mask[number >> 3] >> (number & 7) & 1]
            if not possible:
                break
            output.append(source.choice(possible))

    for line in sys.stdin:
        with suppress(RequestError):
            in_thread(lambda text: made.append(compiler.compile(text)), json.loads(line), STACK_BYTES // 2)
        if made:
            in_thread(follow, made.pop(), SMALL_STACK)
        print("ok", flush=True)


def in_thread(work: Callable[[T], None], on: T, stack: int) -> None:
    """Run work in a thread and reraise its exception."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work(on)
        except BaseException as error:  # reraised by the caller
            raised.append(error)

    threading.stack_size(stack)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


if __name__ == "__main__":
    main()
