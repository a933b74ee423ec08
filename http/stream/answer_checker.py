# SPDX-License-Identifier: Apache-2.0
"""The proxy's access to the process that checks answers: one check at a time, and each wait has an end."""

import asyncio
import hashlib
from collections import OrderedDict
from typing import Any

from pontil.runtime.grammar.processes.bounded_process import AnswerCheckProcess
from pontil.runtime.grammar.processes.verdict import Verdict

TURN_TIMEOUT = 5.0
MOST_REMEMBERED = 256
# Longer answers are not checked: the check would take long, and memory.
MOST_CHARACTERS = 1 << 20
# Checks of one schema that did not end, after which its answers are not checked any more.
MOST_FAILURES = 2
COSTLY = "a check by this schema takes too much time or memory"


class AnswerChecker:
    """Checks answers in order of their end. A schema whose checks do not end is given
    up, so that it costs others no more time. Call `close` after the server has stopped."""

    def __init__(self, process: AnswerCheckProcess | None = None) -> None:
        self.process = process or AnswerCheckProcess()
        self.turn = asyncio.Lock()
        # Failed checks by the schema's digest.
        self.failures: OrderedDict[bytes, int] = OrderedDict()

    async def verdict(self, schema: str, text: str) -> Verdict:
        key = hashlib.sha256(schema.encode()).digest()
        if self.failures.get(key, 0) >= MOST_FAILURES:
            return Verdict.not_checked(COSTLY)
        if len(text) > MOST_CHARACTERS:
            return Verdict.not_checked(f"the answer has more than {MOST_CHARACTERS} characters")
        if not await self.take_turn():
            return Verdict.not_checked(f"other answers were checked for {TURN_TIMEOUT:g} s before this one")
        try:
            schema_verdict = await self.process.verdict(schema, text)
        finally:
            self.turn.release()
        if schema_verdict is None:
            self.count(key)
        return schema_verdict or Verdict.not_checked(COSTLY)

    async def take_turn(self) -> bool:
        taking = asyncio.ensure_future(self.turn.acquire())
        try:
            await asyncio.wait([taking], timeout=TURN_TIMEOUT)
        except asyncio.CancelledError:
            if not taking.cancel():
                self.turn.release()
            raise
        return not taking.cancel()

    def count(self, key: bytes) -> None:
        self.failures[key] = self.failures.pop(key, 0) + 1
        if len(self.failures) > MOST_REMEMBERED:
            self.failures.popitem(last=False)

    async def close(self, app: Any = None) -> None:
        self.process.end()
