# SPDX-License-Identifier: Apache-2.0
"""Text from tokens as they arrive, up to a stop string in it."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from pontil.runtime.tokenizer.tokenizer import Tokenizer

DECODER = codecs.getincrementaldecoder("utf-8")


class StopStrings:
    """The stop string that is complete first wins; of several that end at the same character, the longest.

    The result depends on the text alone, not on how it is split, so a worker that ends generation and a proxy that cuts
    the text agree. With `include` the stop string itself is part of the text. Stop strings are not empty.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self.searches = [StopSearch(stop) for stop in stops]
        self.include = include
        self.held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Return the text that is safe to show now: no part of it can belong to a stop string still to come. After a
        match nothing more is returned."""
        if self.matched is not None:
            return ""
        for position, character in enumerate(text):
            complete = [search.stop for search in self.searches if search.advance(character)]
            if complete:
                return self.cut(self.held + text[: position + 1], max(complete, key=len))
        pending_text = self.held + text
        safe = len(pending_text) - max((search.length for search in self.searches), default=0)
        self.held = pending_text[safe:]
        return pending_text[:safe]

    def cut(self, text: str, stop: str) -> str:
        self.matched, self.held = stop, ""
        return text if self.include else text.removesuffix(stop)

    def finish(self) -> str:
        """Return the text that was held back, when generation ended without a match."""
        held_text, self.held = self.held, ""
        return held_text


class StopSearch:
    """The algorithm of Knuth, Morris and Pratt: `length` is the size of the stop string's prefix with which the text
    ends."""

    def __init__(self, stop: str) -> None:
        assert stop, "an empty stop string would match everywhere"
        self.stop = stop
        self.length = 0
        self.shorter = borders(stop)

    def advance(self, character: str) -> bool:
        """Return whether this character completes the stop string. Must not be called after that."""
        while self.length and self.stop[self.length] != character:
            self.length = self.shorter[self.length - 1]
        if self.stop[self.length] == character:
            self.length += 1
        return self.length == len(self.stop)


def borders(stop: str) -> list[int]:
    """For each prefix of `stop`: the length of the longest shorter prefix that it ends with."""
    table = [0]
    for character in stop[1:]:
        length = table[-1]
        while length and stop[length] != character:
            length = table[length - 1]
        table.append(length + (stop[length] == character))
    return table


class Detokenizer:
    """One choice's text. All results of `add` and `finish`, joined, equal `Tokenizer.decode` of all ids together.

    A character whose bytes are spread over tokens appears with its last byte, so `add` may return an empty text (A7).
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self.bytes_by_id = tokenizer.bytes_by_id
        self.skipped: frozenset[int] = tokenizer.special_ids if skip_special_tokens else frozenset()
        self.decoder = DECODER(errors="replace")

    def add(self, ids: Iterable[int]) -> str:
        """Return the text that these tokens complete. Constant work per token."""
        token_bytes, skipped_ids = self.bytes_by_id, self.skipped
        size = len(token_bytes)
        return self.decoder.decode(
            b"".join([token_bytes[item] for item in ids if 0 <= item < size and item not in skipped_ids])
        )

    def finish(self) -> str:
        """Return the rest of an unfinished character: U+FFFD or nothing. Afterwards the next text may begin."""
        last_text = self.decoder.decode(b"", final=True)
        self.decoder.reset()
        return last_text
