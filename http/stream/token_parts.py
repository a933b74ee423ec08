# SPDX-License-Identifier: Apache-2.0
"""The parts of an answer, token by token, so that each token's logprobs go with the text that it made."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from pontil.runtime.chat.answer_part import AnswerPart, Content
from pontil.runtime.chat.answer_reader import AnswerReader
from pontil.runtime.proxy.requests.answer import Delta
from pontil.runtime.tokenizer.detokenizer import Detokenizer
from pontil.runtime.wire.messages import Logprobs

# The length of a token's text, and its logprobs.
Token = tuple[int, list[list[float]]]
# Parts of an answer, and the logprobs of the tokens whose text they are.
PartsOfTokens = tuple[Sequence[AnswerPart], Logprobs]


class TokenParts:
    """Feeds an answer to its reader in pieces of one token each. The result depends on the answer alone, not on how it
    is split into deltas.

    Logprobs go with text for the reader of the answer only: those of reasoning, calls and markers are dropped. Text
    right behind a call that repeats a marker's first character may miss a token's.
    """

    def __init__(self, reader: AnswerReader, detokenizer: Detokenizer) -> None:
        self.reader, self.detokenizer = reader, detokenizer
        self.text = ""
        """Text that was delivered, and is not fed yet."""
        self.tokens: deque[Token] = deque()
        """Tokens of which not all text was fed."""
        self.held: list[Token] = []
        """Tokens that were fed and are in no part yet."""
        self.held_text = ""
        self.had_thought = self.has_thought

    @property
    def has_thought(self) -> bool:
        """True once reasoning has ended: its marker is no text."""
        return self.reader.thoughts is not None and self.reader.thoughts.ended

    def feed(self, delta: Delta) -> Iterator[PartsOfTokens]:
        """Yield the parts of these tokens. A stop string may hold the text of a token back."""
        self.text += delta.text
        for identity, entries in zip(delta.ids, delta.logprobs, strict=True):
            self.tokens.append((len(self.detokenizer.add([identity])), entries))
        start = 0
        while self.tokens and start + self.tokens[0][0] <= len(self.text):
            token = self.tokens.popleft()
            end = start + token[0]
            yield self.parts([token], self.text[start:end])
            start = end
        self.text = self.text[start:]

    def finish(self) -> Iterator[PartsOfTokens]:
        """Yield the rest of an answer that has ended, whose last tokens a stop string may have cut."""
        last_text, self.text = self.text, ""
        yield self.parts(self.tokens, last_text)
        yield self.told(self.reader.finish())

    def parts(self, tokens: Iterable[Token], text: str) -> PartsOfTokens:
        self.held += tokens
        self.held_text += text
        return self.told(self.reader.feed(text) if text else [])

    def told(self, parts: Sequence[AnswerPart]) -> PartsOfTokens:
        """Return these parts with the logprobs of their text. Of what was held, something before it may have been a
        marker, and something behind it may become one."""
        content = "".join(part.text for part in parts if isinstance(part, Content))
        if not content:
            if parts or self.has_thought != self.had_thought:
                self.held, self.held_text = [], ""
            self.had_thought = self.has_thought
            return parts, []
        start = 0 if self.held_text.startswith(content) else max(0, self.held_text.rfind(content))
        end = start + len(content)
        offsets = list(accumulate((length for length, _ in self.held), initial=0))
        part_logprobs = [
            entries
            for (length, entries), offset in zip(self.held, offsets, strict=False)
            if offset < end and offset + max(1, length) > start
        ]
        rest_index = next((index for index, offset in enumerate(offsets) if offset >= end), len(self.held))
        self.held, self.held_text = self.held[rest_index:], self.held_text[offsets[rest_index] :]
        return parts, part_logprobs

    @property
    def last(self) -> Logprobs:
        """The logprobs of the tokens in no part, such as the one that ended the answer."""
        return [entries for _, entries in self.held]
