# SPDX-License-Identifier: Apache-2.0
"""Pairs of texts as token ids, as a model reads them that scores them.

A query is encoded once for all of its documents, and a pair is put together of lists of ids. Special tokens that are
written in a text are plain text: no document can pretend to end, or to be the query.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.tokenizer.tokenizer import Tokenizer

# The words of Qwen3-Reranker (https://huggingface.co/Qwen/Qwen3-Reranker-0.6B), by which a decoder is asked for its
# judgement: its next word is yes or no.
START, END = "<|im_start|>", "<|im_end|>"
BEFORE = (
    f"{START}system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    f'Note that the answer can only be "yes" or "no".{END}\n{START}user\n'
)
AFTER = f"{END}\n{START}assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
QUERY, DOCUMENT = "<Instruct>: {instruction}\n<Query>: {text}\n", "<Document>: "
YES, NO = "yes", "no"


@dataclass(frozen=True, slots=True)
class TextPair:
    """A pair as one sequence of ids; `types` as in Embed."""

    ids: list[int]
    types: list[int]


@dataclass(frozen=True, slots=True)
class FramePart:
    """Ids around texts, and the type of each of them."""

    ids: list[int]
    types: list[int]


NOTHING = FramePart([], [])


@dataclass(frozen=True, slots=True)
class PairEncoder:
    """The tokenizer of such a model, and what is `before` the first text, `between` the two and `after` the second.
    `kinds` are the types of the texts' own tokens. With `judges` the texts are given as to a decoder."""

    tokenizer: Tokenizer
    before: FramePart
    between: FramePart
    after: FramePart
    kinds: tuple[int, int] = (0, 0)
    judges: bool = False

    @property
    def around(self) -> int:
        """The tokens of a pair that are of neither text."""
        return len(self.before.ids) + len(self.between.ids) + len(self.after.ids)

    @property
    def label(self) -> int:
        """The first tokens of a second text that stand before its own."""
        return len(self.second("")) if self.judges else 0

    def first(self, text: str, instruction: str | None = None) -> list[int]:
        """Encode a query, with what a decoder is told of it. Raises RequestError for text that is not valid Unicode."""
        if not self.judges:
            return self.encode(text)
        return self.encode(QUERY.format(instruction=instruction or INSTRUCTION, text=text))

    def second(self, text: str) -> list[int]:
        """Encode a document. Raises RequestError as `first` does."""
        return self.encode(DOCUMENT + text if self.judges else text)

    def encode(self, text: str) -> list[int]:
        """Encode a text without Python's lock."""
        try:
            return self.tokenizer.literal_backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError as error:
            raise RequestError("the text holds half of a surrogate pair: send valid Unicode") from error

    def pair(self, first: list[int], second: list[int]) -> TextPair:
        """Put a pair together. Its lists share the numbers of these."""
        ids = self.before.ids + first + self.between.ids + second + self.after.ids
        types = [
            *self.before.types,
            *([self.kinds[0]] * len(first)),
            *self.between.types,
            *([self.kinds[1]] * len(second)),
            *self.after.types,
        ]
        return TextPair(ids, types if any(types) else [])


def pair_encoder(tokenizer: Tokenizer, *, judges: bool) -> PairEncoder:
    """Return the pairs of a cross-encoder, or of a decoder that `judges`. Raises ModelError for a tokenizer that is not
    of such a model."""
    return judged_pairs(tokenizer) if judges else joined_pairs(tokenizer)


def joined_pairs(tokenizer: Tokenizer) -> PairEncoder:
    """Return the pairs as the tokenizer's post-processor puts two texts together."""
    backend = tokenizer.literal_backend
    texts = [backend.encode(text, add_special_tokens=False) for text in ("a", "b")]
    whole = backend.encode("a", "b", add_special_tokens=True)
    runs = [list(run) for _, run in groupby(range(len(whole.ids)), whole.sequence_ids.__getitem__)]
    owners = [whole.sequence_ids[run[0]] for run in runs]
    parts = [FramePart([whole.ids[at] for at in run], [whole.type_ids[at] for at in run]) for run in runs]
    own = [part for owner, part in zip(owners, parts, strict=True) if owner is not None]
    if [owner for owner in owners if owner is not None] != [0, 1] or [part.ids for part in own] != [
        text.ids for text in texts
    ]:
        raise ModelError("the tokenizer does not put two texts one behind the other: fetch the model again")
    first, second = owners.index(0), owners.index(1)
    around = (parts[:first], parts[first + 1 : second], parts[second + 1 :])
    before, between, after = (part[0] if part else NOTHING for part in around)
    return PairEncoder(tokenizer, before, between, after, (own[0].types[0], own[1].types[0]))


def judged_pairs(tokenizer: Tokenizer) -> PairEncoder:
    """Return the pairs of a decoder, in the words of Qwen3-Reranker."""
    judgement_ids(tokenizer)
    before, after = (tokenizer.encode(text, add_special_tokens=False) for text in (BEFORE, AFTER))
    parts = [FramePart(ids, [0] * len(ids)) for ids in (before, after)]
    return PairEncoder(tokenizer, parts[0], NOTHING, parts[1], judges=True)


def judgement_ids(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the tokens for no and yes. Raises ModelError for a tokenizer without them, or without those around turns
    of a chat: its model was not trained to judge by them."""
    words = (NO, YES, START, END)
    ids = [tokenizer.token_id(word) for word in words]
    found = [number for number in ids if number is not None]
    if len(found) < len(words):
        missing = ", ".join(word for word, number in zip(words, ids, strict=True) if number is None)
        raise ModelError(f"the model has no tokens {missing}: a decoder that scores pairs is one like Qwen3-Reranker")
    return found[0], found[1]
