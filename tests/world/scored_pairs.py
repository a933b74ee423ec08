# SPDX-License-Identifier: Apache-2.0
"""Clients who have documents ranked and pairs of texts scored: one or several at a time, cut or whole."""

import random
from typing import Any

from answer_forms import COMPLETION, RANKING, SCORES
from clients import ClientWish, PairWish
from conversations import letters_of
from embeddings import at_once
from hash_vectors import pairs_of
from site_plan import RERANKER

from pontil.runtime.tokenizer.tokenizer import Tokenizer

# Share of such a seed's completions, the most documents of one, and the most letters of its query.
SCORED, MOST_DOCUMENTS, LONGEST_QUERY = 0.6, 5, 60
# Shares of those that are ranked, name the model, want the best ones only, are cut by the server, and have a document
# twice.
RANKED, NAMED, BEST, CUT, TWICE = 0.5, 0.5, 0.4, 0.2, 0.3


def with_pairs(
    wishes: list[tuple[float, ClientWish]], chance: random.Random, tokenizer: Tokenizer
) -> list[tuple[float, ClientWish]]:
    """Return the requests of a seed, of which many of the completions are for scores."""
    return [
        (at, scored(wish, chance, tokenizer) if wish.form == COMPLETION and chance.random() < SCORED else wish)
        for at, wish in wishes
    ]


def scored(wish: ClientWish, chance: random.Random, tokenizer: Tokenizer) -> ClientWish:
    """Return the same client's request to score parts of its prompt by its beginning."""
    text = letters_of(wish.prompt)
    query, places = text[: chance.randrange(1, LONGEST_QUERY)], [0, len(text)]
    places += (chance.randrange(len(text)) for _ in range(chance.randrange(MOST_DOCUMENTS)))
    places.sort()
    documents = [text[low:high] for low, high in zip(places, places[1:], strict=False) if low < high]
    documents += documents[: chance.random() < TWICE]
    ranks = chance.random() < RANKED
    names = ("query", "documents") if ranks else ("text_1", "text_2")
    fields: dict[str, Any] = dict(zip(names, (query, documents), strict=True))
    if chance.random() < NAMED:
        fields["model"] = RERANKER
    best = most = None
    if ranks and chance.random() < BEST:
        best = fields["top_n"] = chance.randrange(1, MOST_DOCUMENTS + 1)
    if chance.random() < CUT:
        most = fields["max_tokens_per_doc"] = chance.randrange(1, 40)
    encoder = pairs_of(tokenizer)
    pairs = tuple(encoder.pair(encoder.first(query), encoder.second(one)[:most]) for one in documents)
    prompt = [token for pair in pairs for token in pair.ids]
    return at_once(wish, form=RANKING if ranks else SCORES, scores=PairWish(pairs, best, fields), prompt=prompt)
