# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of both endpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.http.fields.json_body import kind_of
from pontil.http.fields.parameter import Parameter, Schema
from pontil.http.fields.parameter_types import FlagType, IntegerType, NeutralType, NumberType, ShapedType
from pontil.http.fields.reader import Fields
from pontil.http.fields.structured_output import STRUCTURE, OutputStructure, structure_of
from pontil.http.fields.tokens import TOKENS, TokenFields, token_fields
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.admission import SEED_BITS, mint_seed
from pontil.runtime.sampling_params import ABOVE, RANGES, SamplingParams

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """Validated parameters, not yet fitted to a prompt: `max_tokens` None is the endpoint's default."""

    max_tokens: int | None
    max_tokens_name: str
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int | None
    n: int
    min_tokens: int
    logprobs: int | None
    prompt_logprobs: int | None
    stop: tuple[str, ...]
    tokens: TokenFields
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    ignore_eos: bool
    structure: OutputStructure | None

    def params(self, max_tokens: int) -> SamplingParams:
        """Return the parameters for one prompt, with a random seed where the client gave none. Raises RequestError when
        min_tokens exceeds the room that the prompt leaves."""
        if self.min_tokens > max_tokens:
            says = f"min_tokens is {self.min_tokens}, but at most {max_tokens} may be generated: ask for fewer"
            raise RequestError(says, param="min_tokens")
        return SamplingParams(
            max_tokens=max_tokens,
            seed=mint_seed() if self.seed is None else self.seed % (1 << SEED_BITS),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            n=self.n,
            min_tokens=self.min_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            stop=self.stop,
            stop_token_ids=self.tokens.stop,
            bad_token_ids=self.tokens.bad,
            allowed_token_ids=self.tokens.allowed,
            logit_bias=self.tokens.bias,
            logprob_token_ids=self.tokens.named,
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
            ignore_eos=self.ignore_eos,
            grammar=None if self.structure is None else self.structure.grammar,
        )


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
    if tokens.named and logprobs.output is None:
        raise fields.wrong("logprob_token_ids", "needs logprobs: ask for them too, or leave it out")
    check_choices(fields, values)
    check_min_tokens(fields, values, name, max_tokens)
    return SamplingFields(
        max_tokens=max_tokens,
        max_tokens_name=name,
        temperature=values["temperature"],
        top_p=values["top_p"],
        # Some clients write -1 for "the whole vocabulary".
        top_k=max(0, values["top_k"]),
        min_p=values["min_p"],
        presence_penalty=values["presence_penalty"],
        frequency_penalty=values["frequency_penalty"],
        repetition_penalty=values["repetition_penalty"],
        seed=values["seed"],
        n=values["n"],
        min_tokens=values["min_tokens"],
        # The tokens named are shown in place of the likeliest.
        logprobs=0 if tokens.named else logprobs.output,
        prompt_logprobs=logprobs.prompt,
        stop=values["stop"],
        tokens=tokens,
        include_stop_str_in_output=values["include_stop_str_in_output"],
        skip_special_tokens=values["skip_special_tokens"],
        ignore_eos=values["ignore_eos"],
        structure=structure_of(fields, values),
    )


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


def stop_schema(vocab_size: int) -> Schema:
    text = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
    return {
        "title": f"a text of 1 to {MAX_STOP_CHARACTERS} characters, or at most {MAX_STOPS} of them",
        "anyOf": [text, {"type": "array", "items": text, "maxItems": MAX_STOPS}],
    }


def ranged(name: str, default: float, says: str) -> Parameter:
    low, high = RANGES[name]
    return Parameter(name, NumberType(low, high, name in ABOVE), says, default)


def counted(name: str, says: str, default: int | None = None) -> Parameter:
    low, high = RANGES[name]
    return Parameter(name, IntegerType(int(low), int(high)), says, default)


SAMPLING = (
    ranged("temperature", 1.0, "how evenly tokens are drawn; 0 takes the likeliest"),
    ranged("top_p", 1.0, "draw from the likeliest tokens that have this mass together"),
    Parameter(
        "top_k", IntegerType(-1, int(RANGES["top_k"][1])), "draw from so many of the likeliest; 0, -1: from all", 0
    ),
    ranged("min_p", 0.0, "draw from tokens at least this likely, compared with the likeliest"),
    ranged("presence_penalty", 0.0, "taken from the logits of tokens that the answer has"),
    ranged("frequency_penalty", 0.0, "the same, for each time that it has them"),
    ranged("repetition_penalty", 1.0, "divides the logits of tokens that prompt or answer have"),
    Parameter(
        "seed", IntegerType(-(1 << 63), (1 << 63) - 1), "the same seed draws the same tokens; absent: one is minted"
    ),
    counted("n", "how many answers to each prompt", 1),
    Parameter("best_of", IntegerType(1), "must be equal to n"),
    Parameter("min_tokens", IntegerType(0), "nothing ends the answer before it has so many tokens", 0),
    counted("prompt_logprobs", "show the logprobs of the prompt's tokens and of so many of the likeliest"),
    Parameter("stop", ShapedType(read_stop, stop_schema), "texts that end the answer where they appear in it", ()),
    *TOKENS,
    Parameter("include_stop_str_in_output", FlagType(), "show what ended the answer", False),
    Parameter("skip_special_tokens", FlagType(), "do not show special tokens", True),
    Parameter("ignore_eos", FlagType(), "go on after the model's own end", False),
    *STRUCTURE,
    Parameter("length_penalty", NeutralType((1,)), "of beam search"),
    Parameter("use_beam_search", NeutralType((False,)), "beam search"),
    Parameter("spaces_between_special_tokens", NeutralType((True,)), "spaces where special tokens are shown"),
)  # fmt: skip
