# SPDX-License-Identifier: Apache-2.0
"""Grammars over a vocabulary: the tokens that may come next. Only this package uses the library behind them,
llguidance.

A grammar's state is never sent or stored: it is a function of the grammar's text and the tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.closing import SLACK, ClosingVocabulary
from pontil.runtime.grammar.grammar_text import is_json
from pontil.runtime.tokenizer.tokenizer import Tokenizer

# Limits on the cost of untrusted grammars. The library counts its own work: these many units are at most some tenths of
# a second for a grammar, some hundredths for a mask and some tens of MiB for its caches.
MAX_GRAMMAR_CHARACTERS = 1 << 17
MAX_REASON_CHARACTERS = 300
# The library's one-word reasons in plain words.
REASONS = {"NoExtensionBias": "the model has no token that spells what has to come next"}
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_items_in_row=1_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
# The stack on which a grammar must be compiled first, before any other compilation (compile_child.py). The library
# recurses for each name that leads to another one; this is enough for some hundreds of them in a row.
COMPILE_STACK_BYTES = 4 << 20
SILENT = 0
WARNING = "WARNING"
QUOTE = re.compile(r"^ *\d+ \| ", re.MULTILINE)
PLACE = re.compile(r"^(at )?\d+\(\d+\): ")
LAST_WORD = "error: "
NAME = "llguidance"
LIBRARY = f"{NAME} {version(NAME)}"


class GrammarVocabulary:
    """A vocabulary in the form that the library asks for. Its end is a token of its own, behind all others."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.tokens = [*(tokenizer.token_bytes(number) for number in range(vocab_size)), b""]
        self.special_token_ids = sorted(number for number in tokenizer.special_ids if number < vocab_size)
        self.eos_token_id, self.bos_token_id = vocab_size, None

    def __call__(self, text: str | bytes) -> list[int]:
        """Never called for grammars that force no tokens, as ours do, but once to find out whether it takes bytes: an
        encoder is not made for that."""
        if isinstance(text, bytes):
            raise TypeError("a text is encoded, and no bytes")
        return self.tokenizer.encode(text, add_special_tokens=False)


@dataclass(frozen=True, slots=True)
class GrammarTables:
    """A vocabulary in the forms in which grammars need it."""

    words: LLTokenizer
    closing: ClosingVocabulary


class GrammarCompiler:
    """Compiles grammars for the `vocab_size` ids of a model, some of which may have no token. The tables for that are
    made once, for the first grammar or before: it takes a second for a large vocabulary, in which no other thread of
    the process runs. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokenizer, self.vocab_size = tokenizer, vocab_size

    @cached_property
    def tables(self) -> GrammarTables:
        vocabulary = GrammarVocabulary(self.tokenizer, self.vocab_size)
        closing = ClosingVocabulary(vocabulary.tokens, frozenset(vocabulary.special_token_ids))
        return GrammarTables(LLTokenizer(TokenizerWrapper(vocabulary)), closing)

    @property
    def is_prepared(self) -> bool:
        return "tables" in self.__dict__

    def prepare(self) -> None:
        """Make what the first grammar would wait for."""
        _ = self.tables

    def compile(self, text: str) -> Grammar:
        """Compile a grammar; other threads run meanwhile. Raises RequestError for a grammar that cannot be used, in the
        library's words."""
        check_size(text)
        matcher = LLMatcher(self.tables.words, text, log_level=SILENT, limits=LIMITS)
        if matcher.is_error():
            raise unusable(matcher.get_error())
        return Grammar(matcher, self.vocab_size, self.tables.closing if is_json(text) else None)


def check_grammar(text: str) -> None:
    """Check like `compile`, but without a vocabulary: special tokens of the grammar are assumed to exist."""
    check_size(text)
    reason = LLMatcher.validate_grammar(text, None, limits=LIMITS)
    if reason and not reason.startswith(WARNING):
        raise unusable(reason)


def check_size(text: str) -> None:
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise RequestError(f"the grammar has {len(text)} characters, at most {MAX_GRAMMAR_CHARACTERS} are possible")


def unusable(reason: str) -> RequestError:
    return RequestError(f"the grammar cannot be used: {sentence(reason)}")


class Grammar:
    """A usable grammar, in its initial state. `closing` is for one of JSON."""

    def __init__(self, beginning: LLMatcher, vocab_size: int, closing: ClosingVocabulary | None = None) -> None:
        self.beginning, self.closing = beginning, closing
        self.vocab_size, self.mask_bytes = vocab_size, 4 * -(-vocab_size // 32)

    def guide(self, ends: frozenset[int], budget: int | None = None) -> GrammarGuide:
        """A guide for one sequence, whose text may end with these ids. They are no part of the text. JSON is closed
        before the `budget` of tokens is used up, where there is one."""
        return GrammarGuide(self, ends, None if self.closing is None else budget)


class GrammarGuide:
    """Keeps one sequence to a grammar; the engine's `Guide`. A matcher that fails is rebuilt, so that a failure on a
    mere draft does no harm."""

    def __init__(self, grammar: Grammar, ends: frozenset[int], budget: int | None = None) -> None:
        self.grammar, self.ends, self.budget = grammar, ends, budget
        self.failure: str | None = None
        self.matcher: LLMatcher | None = None
        self.known = 0

    def masks(self, output: list[int], drafts: Sequence[int] = ()) -> list[bytes]:
        nothing = bytes(self.grammar.mask_bytes)
        matcher = self.follow(output)
        token_masks = [] if matcher is None else self.walk(matcher, drafts, len(output))
        return token_masks + [nothing] * (1 + len(drafts) - len(token_masks))

    def fitting(self, output: list[int], drafts: Sequence[int]) -> int:
        matcher = self.follow(output)
        if matcher is None or matcher.is_stopped():
            return 0
        end = next((place for place, token in enumerate(drafts) if token in self.ends), len(drafts))
        return matcher.validate_tokens(list(drafts[:end])) if end else 0

    def is_cut(self, count: int) -> bool:
        return self.budget is not None and self.budget - (count - 1) <= SLACK

    def follow(self, output: list[int]) -> LLMatcher | None:
        """The matcher after the output, or None if it failed: see `failure`."""
        if self.matcher is None or len(output) < self.known:
            self.matcher, self.known = self.grammar.beginning.deep_copy(), 0
        new, self.known, self.failure = output[self.known :], len(output), None
        if new and not self.matcher.consume_tokens(new):
            self.give_up(self.matcher)
        return self.matcher

    def walk(self, matcher: LLMatcher, drafts: Sequence[int], count: int) -> list[bytes]:
        """The masks after the output, of `count` tokens, and after each draft, up to the first forbidden one."""
        token_masks = [self.within_budget(matcher, count)]
        if matcher.is_error():
            self.give_up(matcher)
            return token_masks
        for token in drafts:
            if token in self.ends or matcher.is_stopped() or matcher.try_consume_tokens([token]) == 0:
                break
            token_masks.append(self.within_budget(matcher, count + len(token_masks)))
        if len(token_masks) > 1 and not matcher.rollback(len(token_masks) - 1):
            self.matcher = None
        return token_masks

    def within_budget(self, matcher: LLMatcher, count: int) -> bytes:
        """The mask of a matcher's next token, after `count` tokens."""
        mask, closing = self.mask(matcher), self.grammar.closing
        if self.budget is None or closing is None or matcher.is_error():
            return mask
        return closing.narrowed(matcher, mask, self.budget - count, self.ends)

    def mask(self, matcher: LLMatcher) -> bytes:
        """The mask of a matcher's next token. The library's own end token stands behind the vocabulary, and is also
        what it allows when nothing else may come."""
        size = self.grammar.mask_bytes
        if matcher.is_error():
            return bytes(size)
        bits = bytearray(matcher.compute_bitmask()[:size])
        if matcher.is_error():
            return bytes(size)
        set_bit(bits, self.grammar.vocab_size, False)
        may_end = matcher.is_accepting()
        for number in self.ends:
            set_bit(bits, number, may_end)
        return bytes(bits)

    def give_up(self, matcher: LLMatcher) -> None:
        self.failure = f"the grammar cannot be followed any further: {sentence(matcher.get_error())}"
        self.matcher = None


def set_bit(bits: bytearray, number: int, value: bool) -> None:
    """Set a bit; does nothing beyond the end."""
    place, bit = number >> 3, 1 << (number & 7)
    if place < len(bits):
        bits[place] = bits[place] | bit if value else bits[place] & ~bit


def sentence(reason: str) -> str:
    """The library's reason in one line: without the position and the quoted piece of the grammar, which come from our
    own text around it, and with the last word of a parser that it asked."""
    lines = [line.strip() for line in QUOTE.split(reason)[0].splitlines() if line.strip()]
    line = PLACE.sub("", lines[0]) if lines else "the library does not say why"
    line = REASONS.get(line, line)
    if len(lines) > 1 and lines[-1].startswith(LAST_WORD):
        line = f"{line} {lines[-1].removeprefix(LAST_WORD)}"
    return line if len(line) <= MAX_REASON_CHARACTERS else f"{line[:MAX_REASON_CHARACTERS]}…"
