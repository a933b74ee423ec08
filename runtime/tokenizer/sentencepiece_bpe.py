# SPDX-License-Identifier: Apache-2.0
"""SentencePiece's BPE with byte fallback, from the pieces and scores that a GGUF file holds.

SentencePiece joins the two neighbours whose piece has the best score. The backend joins by rank among pairs, so every
way to cut a piece in two other pieces becomes a pair, in the order of the pieces' scores. The order among the pairs of
one piece, longest left part first, is the one transformers gives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from pontil.runtime.errors import ModelError
from pontil.runtime.tokenizer.merge_cache import MergeCache, Pair

SPACE = "\u2581"
GEMMA = ("gemma", "gemma2", "gemma3")


def sentencepiece_tokenizer(
    tokens: Sequence[str],
    scores: Sequence[float],
    architecture: str,
    unknown: str | None,
    space_prefix: bool,
    cache: MergeCache,
) -> Tokenizer:
    """Build the tokenizer, without added tokens. Raises ModelError if tokens and scores do not fit each other."""
    if len(scores) != len(tokens):
        raise ModelError(f"the GGUF file has {len(tokens)} tokens but {len(scores)} scores: fetch it again")
    pieces = spelled(tokens)
    gemma = architecture in GEMMA
    # Gemma's pieces are in the order of their merges; its scores do not rank the runs of spaces and line ends.
    rank_scores = [-float(number) for number in range(len(pieces))] if gemma else scores
    pairs = cache.pairs(pieces, rank_scores, lambda: list(derive(pieces, rank_scores)))
    merges = [(pieces[left_id], pieces[right_id]) for left_id, right_id in pairs]
    ids = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=ids, merges=merges, fuse_unk=True, byte_fallback=True, unk_token=unknown))
    if gemma:
        backend.normalizer = normalizers.Replace(" ", SPACE)
    else:
        scheme = "first" if space_prefix else "never"
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def spelled(tokens: Sequence[str]) -> list[str]:
    """Spell all tokens alike: Gemma's files write runs of spaces literally, all other pieces with U+2581."""
    return [SPACE * len(token) if token.isspace() and token.strip(" ") == "" else token for token in tokens]


def derive(pieces: Sequence[str], scores: Sequence[float]) -> Iterator[Pair]:
    """The ids of every two pieces that make a third, best first."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    best_first = sorted(ids, key=lambda piece: -scores[ids[piece]])
    for _, group in groupby(best_first, key=lambda piece: scores[ids[piece]]):
        equals = list(group)
        pairs = [pair for piece in equals for pair in cuts(piece, ids)]
        if len(equals) > 1:
            pairs.sort(key=lambda pair: (-len(pieces[pair[0]]), -len(pieces[pair[1]])))
        yield from pairs


def cuts(piece: str, ids: dict[str, int]) -> list[Pair]:
    """The two ids of each way to cut a piece in two pieces, the longest left part first."""
    pairs = []
    for end in range(len(piece) - 1, 0, -1):
        left_id = ids.get(piece[:end])
        if left_id is not None and (right_id := ids.get(piece[end:])) is not None:
            pairs.append((left_id, right_id))
    return pairs
