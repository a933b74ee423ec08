# SPDX-License-Identifier: Apache-2.0
"""The reasoning in an answer, told apart where its tokens are made, by the parser that tells it apart for clients."""

from __future__ import annotations

from pontil.runtime.chat.harmony_parser import ENDS, HarmonyParser
from pontil.runtime.chat.reasoning_parser import THOUGHT, ReasoningParser
from pontil.runtime.grammar.grammar_text import Thought
from pontil.runtime.tokenizer.detokenizer import Detokenizer
from pontil.runtime.tokenizer.tokenizer import Tokenizer


class TokenReasoning:
    """Reads the tokens of one answer, before which the prompt has left `thought`; the engine's `ReasoningWatch`. Behind
    a marker that has ended all reasoning no text is read."""

    def __init__(self, tokenizer: Tokenizer, thought: Thought) -> None:
        self.detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
        self.parser = HarmonyParser({}) if thought is Thought.MESSAGE else ReasoningParser(thought is Thought.BEGUN)

    @property
    def inside(self) -> bool:
        return self.parser.inside

    @property
    def over(self) -> bool:
        return self.parser.over

    def feed(self, token_id: int) -> None:
        if not self.parser.over:
            self.parser.feed(self.detokenizer.add([token_id]))


def closing_ids(tokenizer: Tokenizer, thought: Thought) -> tuple[int, ...]:
    """Return the tokens that spell the end of reasoning, one where the vocabulary has it as such."""
    marker = ENDS[0] if thought is Thought.MESSAGE else THOUGHT
    token = tokenizer.token_id(marker)
    return tuple(tokenizer.encode(marker, add_special_tokens=False)) if token is None else (token,)
