# SPDX-License-Identifier: Apache-2.0
"""A streamed text cut into pieces that a voice can speak one by one: sentences, and clauses of long ones."""

from collections.abc import Iterable, Iterator
from typing import Final

# The most characters of a piece.
MOST: Final = 200
# A piece may end at a comma from this length on: the first piece early, so that speech begins soon.
FIRST_CLAUSE: Final = 24
CLAUSE: Final = 120
SENTENCE_ENDS = frozenset(".!?…")
# These end a sentence without a space after them.
WIDE_ENDS = frozenset("。！？")
CLAUSE_ENDS = frozenset(",;:—–")
# Characters that belong to the sentence whose end is before them.
CLOSERS = "\"'”’)]}»*_`」』）"
OPENERS = "\"'“‘([{«*_`"
ABBREVIATIONS = frozenset({
    "approx", "ca", "cf", "co", "corp", "dept", "dr", "e.g", "ed", "eq", "etc", "fig", "gen", "gov", "hon", "i.e",
    "inc", "jr", "lt", "ltd", "max", "min", "mr", "mrs", "ms", "mt", "no", "p", "pp", "prof", "rev", "sen", "sgt", "sr",
    "st", "u.k", "u.s", "vol", "vs",
})  # fmt: skip


class Clauses:
    """Pieces of a text that arrives in parts. The pieces joined are the text, and do not depend on how it arrived: each
    character is judged with the one after it, never with the end of a part."""

    def __init__(self) -> None:
        self._held = ""
        self._first = True

    def feed(self, text: str) -> list[str]:
        """Take more text; return the pieces that are complete now."""
        pieces = []
        for character in text:
            if self._ends_before(character):
                pieces.append(self._take(len(self._held)))
            self._held += character
            if len(self._held) == MOST:
                pieces.append(self._take(last_gap(self._held)))
        return pieces

    def finish(self) -> list[str]:
        """Return the last piece, if there is one: the text has ended."""
        return [self._take(len(self._held))] if self._held else []

    def _take(self, length: int) -> str:
        piece, self._held = self._held[:length], self._held[length:]
        self._first = self._first and piece.isspace()
        return piece

    def _ends_before(self, following: str) -> bool:
        """Return whether the held text is a piece, now that the character after it is known."""
        said = self._held.rstrip()
        if not said or following.isspace():
            return False
        gap = self._held[len(said) :]
        core = said.rstrip(CLOSERS)
        if core and core[-1] in WIDE_ENDS:
            return following not in CLOSERS
        if not gap:
            return False
        if "\n" in gap:
            return True
        if core and core[-1] in SENTENCE_ENDS:
            return ends_sentence(core, following)
        return said[-1] in CLAUSE_ENDS and len(said) >= (FIRST_CLAUSE if self._first else CLAUSE)


def pieces_of(texts: Iterable[str]) -> Iterator[str]:
    """Yield the pieces of a text that arrives in parts, each as soon as it is complete."""
    clauses = Clauses()
    for text in texts:
        yield from clauses.feed(text)
    yield from clauses.finish()


def ends_sentence(said: str, following: str) -> bool:
    """Return whether the mark that ends `said` ends a sentence: not after an abbreviation, an initial or the number of
    a list's item, and not before a small letter."""
    if following.islower():
        return False
    if said[-1] != ".":
        return True
    word = said.split()[-1][:-1].lstrip(OPENERS)
    of_a_list = word.isdecimal() and said.strip(OPENERS + " \n\t") == f"{word}."
    initial = len(word) == 1 and word.isupper() and word != "I"
    return not (of_a_list or initial or word.lower() in ABBREVIATIONS)


def last_gap(text: str) -> int:
    """Return the place after the last white space, the whole length where there is none."""
    for place in range(len(text), 0, -1):
        if text[place - 1].isspace():
            return place
    return len(text)
