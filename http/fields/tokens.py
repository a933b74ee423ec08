# SPDX-License-Identifier: Apache-2.0
"""Parameters about single tokens: stop tokens, allowed and banned tokens, and biases."""

from collections.abc import Mapping
from typing import Any

from pontil.http.schema.parameter import Parameter, Schema
from pontil.http.schema.parameter_types import IdsType, ShapedType
from pontil.http.schema.reader import Fields
from pontil.runtime.sampling_params import MAX_BIAS

MAX_STOP_IDS = 64
MAX_NAMED_IDS = 128
MAX_IDS = 4096
MAX_BIASES = 1024


def token_fields(fields: Fields, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lists of token ids, which lie in the vocabulary, by their names; an empty `allowed_token_ids` allows
    all of it."""
    found = {token.name: values[token.name] for token in TOKENS}
    allowed = found["allowed_token_ids"]
    if allowed and set(allowed) <= set(found["bad_token_ids"]):
        raise fields.wrong("allowed_token_ids", "allows only tokens that bad_token_ids forbids")
    return found | {"logprob_token_ids": tuple(dict.fromkeys(found["logprob_token_ids"]))}


def read_bias(fields: Fields, name: str) -> tuple[tuple[int, float], ...]:
    """Read OpenAI's form: an object from token ids, written as strings, to the values added to their logits."""
    biases = fields.required_object(name)
    if len(biases.data) > MAX_BIASES:
        raise fields.wrong(name, f"may hold at most {MAX_BIASES} items")
    pairs = [(read_id(fields, name, key), read_value(biases, key)) for key in biases.data]
    if len({token for token, _ in pairs}) < len(pairs):
        raise fields.wrong(name, "names a token twice")
    return tuple(pairs)


def read_id(fields: Fields, name: str, key: Any) -> int:
    if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20):
        raise fields.wrong(name, f"has a key that is no token id: {key!r:.40}")
    if int(key) >= fields.vocab_size:
        raise fields.outside_vocabulary(name, int(key), fields.vocab_size)
    return int(key)


def read_value(biases: Fields, key: str) -> float:
    if biases.data[key] is None:
        raise biases.typed(key, None, "a number")
    return biases.number(key, 0.0, -MAX_BIAS, MAX_BIAS)


BIAS_SCHEMA: Schema = {
    "title": f"an object from token ids to numbers from {-MAX_BIAS:g} to {MAX_BIAS:g}, at most {MAX_BIASES}",
    "type": "object",
    "maxProperties": MAX_BIASES,
    "propertyNames": {"pattern": "^[0-9]{1,19}$"},
    "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
}


TOKENS = (
    Parameter("stop_token_ids", IdsType(MAX_STOP_IDS), "tokens that end the answer, and are not shown", ()),
    Parameter("bad_token_ids", IdsType(MAX_IDS), "tokens that are never drawn", ()),
    Parameter("allowed_token_ids", IdsType(MAX_IDS, least=1), "the only tokens that are drawn", ()),
    Parameter(
        "logprob_token_ids", IdsType(MAX_NAMED_IDS), "the tokens whose logprobs are shown, not the likeliest", ()
    ),
    Parameter("logit_bias", ShapedType(read_bias, BIAS_SCHEMA), "what is added to the logits of these tokens", ()),
)
