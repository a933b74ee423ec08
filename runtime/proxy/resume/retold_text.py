# SPDX-License-Identifier: Apache-2.0
"""The text of an answer that is told again, made anew in parts: a long one would hold the event loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pontil.runtime.errors import MalformedFrame
from pontil.runtime.proxy.requests.answer import Choice
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer

# Ids whose text is made in one turn of the event loop.
PART = 1024


class RetoldText:
    """The text of one choice's answer so far."""

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams, number: int = 0) -> None:
        self.fresh, self.pieces = Choice(tokenizer, params, number), list[str]()

    def advance(self, ids: Sequence[int]) -> bool:
        """Read a part of these ids; return whether there is more. The last one is left: it may be the end."""
        start = len(self.fresh.ids)
        part = ids[start : min(start + PART, len(ids) - 1)]
        if part:
            self.pieces.append(self.fresh.add(part))
        return start + PART < len(ids) - 1

    def finish(self, ids: Sequence[int], reason: str | None, stop_match: str | None) -> str:
        """Read the rest of these ids, and the choice's end, if there is one; return all of the text."""
        self.pieces.append(self.fresh.add(list(ids[len(self.fresh.ids) :]), reason, stop_match))
        self.fresh.reason, self.fresh.stop_match = reason, stop_match
        return "".join(self.pieces)


class Retelling:
    """The making of such texts: however many are made, there is one part in a turn of the event loop."""

    def __init__(self, tokenizer_of: Callable[[str | None], Tokenizer]) -> None:
        self.tokenizer_of, self.turns = tokenizer_of, asyncio.Lock()

    async def texts(
        self, params: SamplingParams, ids: Sequence[Sequence[int]], model: str | None = None
    ) -> list[RetoldText]:
        """Return the texts of these choices of a model, all but their ends. The ids may grow meanwhile."""
        texts = [RetoldText(self.tokenizer_of(model), params, number) for number in range(len(ids))]
        for text, choice_ids in zip(texts, ids, strict=True):
            has_more = True
            while has_more:
                async with self.turns:
                    has_more = text.advance(choice_ids)
                    await asyncio.sleep(0)
        return texts

    async def of_record(self, lines: Sequence[Mapping[str, Any]]) -> list[RetoldText]:
        """Return the texts of a record's choices; none of lines that cannot be read."""
        try:
            params, ids = SamplingParams.from_wire(lines[0]["params"]), recorded_ids(lines)
        except (KeyError, TypeError, ValueError, MalformedFrame):
            return []
        return await self.texts(params, ids, lines[0].get("model"))


def recorded_ids(lines: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Return the ids of each choice that a record has. Raises ValueError for lines that do not agree."""
    ids: list[list[int]] = [[] for _ in (lines[1]["new"] if len(lines) > 1 else ())]
    for state in lines[1:]:
        for choice_ids, new in zip(ids, state["new"], strict=True):
            choice_ids += new
    return ids
