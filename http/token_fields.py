# SPDX-License-Identifier: Apache-2.0
"""What a request says about single tokens: those that end it, those it may and may not hold, and biases."""

from dataclasses import dataclass
from typing import Any

from pontil.http.fields import Fields
from pontil.runtime.sampling_params import MAX_BIAS

MAX_STOP_IDS = 64
MAX_IDS = 4096
MAX_BIASES = 1024


@dataclass(frozen=True, slots=True)
class TokenFields:
    """Ids are inside the vocabulary; `allowed` empty allows all of it."""

    stop: tuple[int, ...]
    bad: tuple[int, ...]
    allowed: tuple[int, ...]
    bias: tuple[tuple[int, float], ...]


def read_tokens(fields: Fields, vocab_size: int) -> TokenFields:
    bad = fields.integers("bad_token_ids", vocab_size, MAX_IDS)
    allowed = fields.integers("allowed_token_ids", vocab_size, MAX_IDS)
    if fields.data.get("allowed_token_ids") == []:
        raise fields.wrong("allowed_token_ids", "is empty, which would allow no token: leave it out to allow all")
    if allowed and set(allowed) <= set(bad):
        raise fields.wrong("allowed_token_ids", "allows only tokens that bad_token_ids forbids")
    stop = fields.integers("stop_token_ids", vocab_size, MAX_STOP_IDS)
    return TokenFields(stop, bad, allowed, read_bias(fields, vocab_size))


def read_bias(fields: Fields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """OpenAI's form: an object of token ids, written as strings, and what is added to their logits."""
    biases = fields.object("logit_bias")
    if biases is None:
        return ()
    if len(biases.data) > MAX_BIASES:
        raise fields.wrong("logit_bias", f"may hold at most {MAX_BIASES} items")
    pairs = [(read_id(fields, key, vocab_size), read_value(biases, key)) for key in biases.data]
    if len({token for token, _ in pairs}) < len(pairs):
        raise fields.wrong("logit_bias", "names a token twice")
    return tuple(pairs)


def read_id(fields: Fields, key: Any, vocab_size: int) -> int:
    if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20):
        raise fields.wrong("logit_bias", f"has a key that is no token id: {key!r:.40}")
    if int(key) >= vocab_size:
        raise fields.wrong("logit_bias", f"holds an id outside the vocabulary: ids go from 0 to {vocab_size - 1}")
    return int(key)


def read_value(biases: Fields, key: str) -> float:
    if biases.data[key] is None:
        raise biases.typed(key, None, "a number")
    return biases.number(key, 0.0, -MAX_BIAS, MAX_BIAS)
