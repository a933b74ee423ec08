# SPDX-License-Identifier: Apache-2.0
"""Whether a grammar can be used, found out before any worker hears of it."""

import asyncio
from collections import OrderedDict

from pontil.http.structured_fields import Structure
from pontil.runtime.errors import RequestError
from pontil.runtime.text.grammar import check_grammar

CHECK_TIMEOUT = 10.0
MOST_REMEMBERED = 256


class GrammarCheck:
    """Compiles each grammar once, in a thread, so that other streams go on meanwhile; remembers which were good."""

    def __init__(self) -> None:
        self.good: OrderedDict[str, None] = OrderedDict()
        self.turn = asyncio.Lock()

    async def check(self, structure: Structure | None) -> None:
        """Raises RequestError, which names the parameter, for a grammar that cannot be used."""
        if structure is None or structure.grammar in self.good:
            return
        try:
            await asyncio.wait_for(self.compile(structure.grammar), CHECK_TIMEOUT)
        except asyncio.TimeoutError:
            says = f"takes more than {CHECK_TIMEOUT:.0f} s to compile: ask for something simpler"
            raise RequestError(f"{structure.param} {says}", param=structure.param) from None
        except RequestError as error:
            raise RequestError(f"{structure.param}: {error}", param=structure.param) from None
        self.good[structure.grammar] = None
        if len(self.good) > MOST_REMEMBERED:
            self.good.popitem(last=False)

    async def compile(self, grammar: str) -> None:
        async with self.turn:
            await asyncio.to_thread(check_grammar, grammar)
