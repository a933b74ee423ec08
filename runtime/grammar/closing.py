# SPDX-License-Identifier: Apache-2.0
"""The end of a JSON text before its budget is used up.

From any place in a text there is a short way to its end. Once the budget leaves little more than that, only the tokens
of the way are allowed. All of it is a function of the grammar's state and the number of tokens that are left, so that
it is the same in another worker and on replay.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from llguidance import LLMatcher

# Tokens that are left beside the way where it has to be taken. The token that ends a text is one of them; others make
# up for a single token after which the way is longer.
SLACK = 4
# With so many more left, tokens that begin further parts are allowed only if these can be ended too.
WATCHED = 64
# At most so many of them are tried: where there are more, they are the content of a string.
MOST_TRIED = 48
MOST_TOKENS = 256
MOST_LETTERS = 1024
# A way that repeats one letter leads nowhere.
MOST_REPEATED = 64
# An object or list is closed where it may be, and a string ends; anything else gets its shortest value.
CLOSERS = b"}]"
SHORTEST = b'",:n0[{tf'
IN_STRING = b'"a'
SPACE = 0x20
OPENER = re.compile(rb"[,\[{]")
LONGEST_TOKEN = 16


class ClosingVocabulary:
    """The tokens of a vocabulary by what they do to a JSON text. `special` ones spell nothing."""

    def __init__(self, tokens: Sequence[bytes], special: Collection[int]) -> None:
        self.ids: dict[bytes, int] = {}
        openers, quoted_openers, opener = [], [], OPENER.search
        for number, token in enumerate(tokens):
            if number in special:
                continue
            if 0 < len(token) <= LONGEST_TOKEN:
                self.ids.setdefault(token, number)
            if opener(token):
                openers.append(number)
                if (quote := token.find(b'"')) >= 0 and opener(token, quote):
                    quoted_openers.append(number)
        self.letters = {token[0]: number for token, number in self.ids.items() if len(token) == 1}
        # No space leads anywhere, so that spaces come last.
        self.others = sorted(self.letters, key=lambda letter: (letter <= SPACE, letter))
        self.openers, self.quoted_openers = bits_of(openers), bits_of(quoted_openers)

    def narrowed(self, matcher: LLMatcher, mask: bytes, tokens_left: int, ends: Collection[int]) -> bytes:
        """Return the part of a mask with which the text can be ended within `tokens_left` tokens; all of it where no
        way to the end is known, or it is too long."""
        if tokens_left > MOST_TOKENS + SLACK + WATCHED:
            return mask
        way = self.way(matcher)
        if way is None or len(way) > tokens_left:
            return mask
        spare, allowed_bits = tokens_left - len(way), int.from_bytes(mask, "little")
        if spare <= SLACK:
            kept_bits = allowed_bits & bits_of(way[:1] or ends)
        elif spare <= SLACK + WATCHED:
            kept_bits = self.that_can_end(matcher, allowed_bits & ~self.quoted_openers, tokens_left - 1)
        else:
            return mask
        return kept_bits.to_bytes(len(mask), "little") if kept_bits else mask

    def that_can_end(self, matcher: LLMatcher, allowed_bits: int, tokens_left: int) -> int:
        """Leave out tokens that begin parts for whose ends less than `tokens_left` tokens do not suffice."""
        tried_bits = allowed_bits & self.openers
        if tried_bits.bit_count() > MOST_TRIED:
            return allowed_bits
        for token in numbers_of(tried_bits):
            behind = matcher.deep_copy()
            way = self.way(behind) if behind.try_consume_tokens([token]) == 1 else None
            if way is None or len(way) > tokens_left:
                allowed_bits ^= 1 << token
        return allowed_bits

    def way(self, matcher: LLMatcher) -> list[int] | None:
        """Return the tokens that end the text, none where it may end; None if no way is found. They are the longest
        ones that spell it, so that behind the first of them the rest is found again."""
        walker, letters, repeats = matcher.deep_copy(), bytearray(), 0
        while not walker.is_accepting():
            letter = self.next_letter(walker)
            repeats = repeats + 1 if letters and letter == letters[-1] else 0
            if letter is None or repeats > MOST_REPEATED or len(letters) == MOST_LETTERS:
                return None
            if walker.try_consume_tokens([self.letters[letter]]) == 0:
                return None
            letters.append(letter)
        return self.tokens_of(bytes(letters))

    def next_letter(self, matcher: LLMatcher) -> int | None:
        closers = [letter for letter in CLOSERS if self.allows(matcher, letter)]
        if len(closers) == 1:
            return closers[0]
        # Where both may come they are content of a string.
        likely = IN_STRING if closers else SHORTEST
        return next((letter for letter in (*likely, *self.others) if self.allows(matcher, letter)), None)

    def allows(self, matcher: LLMatcher, letter: int) -> bool:
        number = self.letters.get(letter)
        return number is not None and matcher.validate_tokens([number]) == 1

    def tokens_of(self, text: bytes) -> list[int]:
        tokens, place = [], 0
        while place < len(text):
            longest = min(LONGEST_TOKEN, len(text) - place)
            size = next(size for size in range(longest, 0, -1) if text[place : place + size] in self.ids)
            tokens.append(self.ids[text[place : place + size]])
            place += size
        return tokens


def bits_of(numbers: Collection[int]) -> int:
    """Return an integer in which these bits are set."""
    bits = bytearray(max(numbers, default=0) // 8 + 1)
    for number in numbers:
        bits[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(bits, "little")


def numbers_of(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
