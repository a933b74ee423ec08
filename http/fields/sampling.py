# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of both endpoints."""

import secrets
from collections.abc import Mapping
from dataclasses import Field, dataclass, replace
from typing import Any

from pontil.http.fields.structured_output import STRUCTURE, OutputStructure, structure_of
from pontil.http.schema.json_body import kind_of
from pontil.http.schema.parameter import Parameter, ParameterType, Schema
from pontil.http.schema.parameter_types import FlagType, IdsType, IntegerType, NeutralType, NumberType, ShapedType
from pontil.http.schema.reader import Fields
from pontil.runtime.errors import RequestError
from pontil.runtime.sampling_params import DECLARED, MAX_BIAS, SamplingParams

MAX_STOP_IDS = 64
MAX_NAMED_IDS = 128
MAX_IDS = 4096
MAX_BIASES = 1024


def token_fields(fields: Fields, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lists of token ids, which lie in the vocabulary, by their names; an empty `allowed_token_ids` allows
    all of it."""
    token_lists = {token.name: values[token.name] for token in TOKENS}
    allowed_ids = token_lists["allowed_token_ids"]
    if allowed_ids and set(allowed_ids) <= set(token_lists["bad_token_ids"]):
        raise fields.wrong("allowed_token_ids", "allows only tokens that bad_token_ids forbids")
    return token_lists | {"logprob_token_ids": tuple(dict.fromkeys(token_lists["logprob_token_ids"]))}


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


MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024
SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """Validated parameters, not yet fitted to a prompt: `params` has all but the token limit, the seed and the grammar.
    `max_tokens` None is the endpoint's default."""

    max_tokens: int | None
    max_tokens_name: str
    seed: int | None
    params: SamplingParams
    structure: OutputStructure | None

    def fitted(self, max_tokens: int) -> SamplingParams:
        """Return the parameters for one prompt, with a random seed where the client gave none. Raises RequestError when
        min_tokens exceeds the room that the prompt leaves."""
        if self.params.min_tokens > max_tokens:
            says = f"min_tokens is {self.params.min_tokens}, but at most {max_tokens} may be generated: ask for fewer"
            raise RequestError(says, param="min_tokens")
        seed = mint_seed() if self.seed is None else self.seed % (1 << SEED_BITS)
        grammar = None if self.structure is None else self.structure.grammar
        budget = self.params.thinking_token_budget
        budget = None if budget is None else min(budget, max_tokens)
        return replace(self.params, max_tokens=max_tokens, seed=seed, grammar=grammar, thinking_token_budget=budget)


def mint_seed() -> int:
    """Return a seed for a request without one, so that a replay draws the same tokens."""
    return secrets.randbits(SEED_BITS)


@dataclass(frozen=True, slots=True)
class LogprobFields:
    """Number of top logprobs to return per token; None: no logprobs at all. Each endpoint has its own parameter
    names."""

    output: int | None
    prompt: int | None


def sampling_fields(
    fields: Fields, values: Mapping[str, Any], limits: tuple[str, ...], logprobs: LogprobFields
) -> SamplingFields:
    """Build the fields. `limits` are this endpoint's names of the token limit, the preferred one first."""
    name, max_tokens = limit_of(fields, values, limits)
    tokens = token_fields(fields, values)
    if tokens["logprob_token_ids"] and logprobs.output is None:
        raise fields.wrong("logprob_token_ids", "needs logprobs: ask for them too, or leave it out")
    check_choices(fields, values)
    check_min_tokens(fields, values, name, max_tokens)
    plain = {name: values[name] for name in PLAIN}
    # Some clients write -1 for "the whole vocabulary"; tokens that are named are shown in place of the likeliest.
    plain["top_k"], output_logprobs = max(0, plain["top_k"]), 0 if tokens["logprob_token_ids"] else logprobs.output
    plain |= {"prompt_logprobs": logprobs.prompt, "logprobs": output_logprobs, "stop": values["stop"]}
    plain[THINKING_BUDGET.name] = values[THINKING_BUDGET.name]
    params = SamplingParams(max_tokens=0, seed=0, **plain, **tokens)
    return SamplingFields(max_tokens, name, values["seed"], params, structure_of(fields, values))


def limit_of(fields: Fields, values: Mapping[str, Any], limits: tuple[str, ...]) -> tuple[str, int | None]:
    """Return the name under which the token limit was given, and its value."""
    name = next((name for name in limits if values[name] is not None), limits[0])
    if len({values[name] for name in limits if values[name] is not None}) > 1:
        raise fields.wrong(limits[-1], f"contradicts {limits[0]}: give one of them")
    return name, values[name]


def check_choices(fields: Fields, values: Mapping[str, Any]) -> None:
    if values["best_of"] not in (None, values["n"]):
        raise fields.wrong("best_of", f"must be equal to n, which is {values['n']}: nothing else is supported")


def check_min_tokens(fields: Fields, values: Mapping[str, Any], name: str, max_tokens: int | None) -> None:
    min_tokens = values["min_tokens"]
    if max_tokens is not None and min_tokens > max_tokens:
        raise fields.wrong("min_tokens", f"is {min_tokens}, more than {name}, which is {max_tokens}")


def read_stop(fields: Fields, name: str) -> tuple[str, ...]:
    value = fields.take(name)
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise fields.typed(name, value, "a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise fields.wrong(name, f"may hold at most {MAX_STOPS} strings")
    for stop in stops:
        if not isinstance(stop, str):
            raise fields.wrong(name, f"must hold strings only, not {kind_of(stop)}")
        if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            raise fields.wrong(name, f"must hold strings of 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(dict.fromkeys(stops))


def stop_schema() -> Schema:
    text = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
    return {
        "title": f"a text of 1 to {MAX_STOP_CHARACTERS} characters, or at most {MAX_STOPS} of them",
        "anyOf": [text, {"type": "array", "items": text, "maxItems": MAX_STOPS}],
    }


def parameter(declared_as: str, name: str | None = None, says: str | None = None) -> Parameter:
    """Return the parameter that `SamplingParams` declares, or one of the same values under another name, described in
    other words."""
    declared_field = DECLARED[declared_as]
    return Parameter(
        name or declared_as,
        kind_of_values(declared_field),
        says or declared_field.metadata["says"],
        declared_field.default,
    )


def kind_of_values(declared_field: Field[Any]) -> ParameterType:
    low, high, above, also = (declared_field.metadata[key] for key in ("low", "high", "above", "also"))
    if declared_field.type == "bool":
        return FlagType()
    return (
        NumberType(low, high, above)
        if declared_field.type == "float"
        else IntegerType(low if also is None else also, high)
    )


# Those that clients give under these names; each endpoint has its own names for `logprobs`.
PLAIN = tuple(name for name in DECLARED if name != "logprobs")
THINKING_BUDGET = Parameter(
    "thinking_token_budget", IntegerType(0), "the most tokens of reasoning, which is ended then and the answer follows"
)
SAMPLING = (
    *map(parameter, PLAIN),
    Parameter(
        "seed", IntegerType(-(1 << 63), (1 << 63) - 1), "the same seed draws the same tokens; absent: one is minted"
    ),
    Parameter("best_of", IntegerType(1), "must be equal to n"),
    Parameter("stop", ShapedType(read_stop, stop_schema()), "texts that end the answer where they appear in it", ()),
    *TOKENS,
    *STRUCTURE,
    Parameter("length_penalty", NeutralType((1,)), "of beam search"),
    Parameter("use_beam_search", NeutralType((False,)), "beam search"),
    Parameter("spaces_between_special_tokens", NeutralType((True,)), "spaces where special tokens are shown"),
)
