# SPDX-License-Identifier: Apache-2.0
"""Clients who have texts embedded: one or several at a time, as text or as tokens, with vectors of several lengths."""

import random
from dataclasses import replace
from typing import Any

from answer_forms import EMBEDDING
from clients import ClientWish, VectorWish
from conversations import letters_of
from hash_vectors import SIZE
from site_plan import EMBEDDER

from pontil.runtime.tokenizer.tokenizer import Tokenizer

# Share of the requests of such a seed, and the most texts of one.
EMBEDDED, MOST_TEXTS = 0.5, 5
# Shares of those that are text, name the model, say a length, want base64, and are cut by the server.
AS_TEXT, NAMED, SHORTER, IN_BASE64, CUT = 0.4, 0.5, 0.3, 0.3, 0.15
# Those who leave do so within so much of the time of others, as a vector comes at once.
SOONER = 0.05


def with_embeddings(
    wishes: list[tuple[float, ClientWish]], chance: random.Random, tokenizer: Tokenizer
) -> list[tuple[float, ClientWish]]:
    """Return the requests of a seed, of which many are for vectors."""
    return [(at, embedded(wish, chance, tokenizer) if chance.random() < EMBEDDED else wish) for at, wish in wishes]


def embedded(wish: ClientWish, chance: random.Random, tokenizer: Tokenizer) -> ClientWish:
    """Return the same client's request for the vectors of parts of its prompt."""
    places = sorted(chance.randrange(1, 1 + len(wish.prompt)) for _ in range(chance.randrange(MOST_TEXTS)))
    bounds = [0, *places, len(wish.prompt)]
    parts = [wish.prompt[low:high] for low, high in zip(bounds, bounds[1:], strict=False) if low < high]
    given: list[Any] = parts
    if chance.random() < AS_TEXT:
        given = [letters_of(part) for part in parts]
        parts = [tokenizer.encode(text, add_special_tokens=True) for text in given]
    fields: dict[str, Any] = {"input": given if len(given) > 1 or chance.random() < 0.5 else given[0]}
    if chance.random() < NAMED:
        fields["model"] = EMBEDDER
    if chance.random() < IN_BASE64:
        fields["encoding_format"] = "base64"
    dimensions = fields["dimensions"] = chance.randrange(1, SIZE + 1) if chance.random() < SHORTER else None
    if given is parts and chance.random() < CUT:
        most = fields["truncate_prompt_tokens"] = chance.randrange(1, 40)
        parts = [part[:most] for part in parts]
    made = VectorWish(tuple(map(tuple, parts)), dimensions, fields)
    return at_once(wish, form=EMBEDDING, vectors=made, prompt=sum(parts, []))


def at_once(wish: ClientWish, **fields: Any) -> ClientWish:
    """Return the same client's request for numbers, which come at once."""
    leaves = None if wish.leaves is None else wish.leaves * SOONER
    return replace(
        wish, **fields, choices=0, stream=False, resumable=False,
        breaks=False, stop=None, messages=(), turns=(), leaves=leaves,
    )  # fmt: skip
