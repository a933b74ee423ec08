# SPDX-License-Identifier: Apache-2.0
"""What both endpoints take about generation."""

from dataclasses import dataclass
from typing import Any

from pontil.http.fields import Fields
from pontil.http.json_body import kind_of
from pontil.http.structured_fields import Structure, read_structure
from pontil.http.token_fields import TokenFields, read_tokens
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.admission import SEED_BITS, mint_seed
from pontil.runtime.sampling_params import ABOVE, RANGES, SamplingParams

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_SALT_CHARACTERS = 256

# Not supported yet: the values that ask for nothing. Null always does.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "priority": (0,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
}


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """Checked, but not yet fitted to a prompt: `max_tokens` None is the endpoint's default."""

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
    structure: Structure | None

    def params(self, max_tokens: int) -> SamplingParams:
        """For one prompt. A seed is minted where the client gave none. Raises RequestError when min_tokens is more than
        the prompt leaves room for."""
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
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
            ignore_eos=self.ignore_eos,
            grammar=None if self.structure is None else self.structure.grammar,
        )


@dataclass(frozen=True, slots=True)
class LogprobFields:
    """How many of the most likely tokens are asked for beside each one; None: no logprobs at all. Each endpoint asks in
    its own words."""

    output: int | None
    prompt: int | None


def read_sampling(fields: Fields, vocab_size: int, limits: tuple[str, ...], logprobs: LogprobFields) -> SamplingFields:
    """`limits` are the names under which this endpoint takes the token limit, the preferred one first."""
    name, max_tokens = read_limit(fields, limits)
    return SamplingFields(
        max_tokens=max_tokens,
        max_tokens_name=name,
        temperature=number(fields, "temperature", 1.0),
        top_p=number(fields, "top_p", 1.0),
        # Some clients write -1 for "the whole vocabulary".
        top_k=max(0, fields.integer("top_k", -1, int(RANGES["top_k"][1])) or 0),
        min_p=number(fields, "min_p", 0.0),
        presence_penalty=number(fields, "presence_penalty", 0.0),
        frequency_penalty=number(fields, "frequency_penalty", 0.0),
        repetition_penalty=number(fields, "repetition_penalty", 1.0),
        seed=fields.integer("seed", -(1 << 63), (1 << 63) - 1),
        n=read_choices(fields),
        min_tokens=read_min_tokens(fields, name, max_tokens),
        logprobs=logprobs.output,
        prompt_logprobs=logprobs.prompt,
        stop=read_stop(fields),
        tokens=read_tokens(fields, vocab_size),
        include_stop_str_in_output=fields.boolean("include_stop_str_in_output", False),
        skip_special_tokens=fields.boolean("skip_special_tokens", True),
        ignore_eos=fields.boolean("ignore_eos", False),
        structure=read_structure(fields),
    )


def number(fields: Fields, name: str, default: float) -> float:
    low, high = RANGES[name]
    return fields.number(name, default, low, high, above=name in ABOVE)


def read_limit(fields: Fields, limits: tuple[str, ...]) -> tuple[str, int | None]:
    """The name under which the token limit was given, and its value."""
    given = {name: fields.integer(name, 1) for name in limits}
    name = next((name for name in limits if given[name] is not None), limits[0])
    if len({value for value in given.values() if value is not None}) > 1:
        raise fields.wrong(limits[-1], f"contradicts {limits[0]}: give one of them")
    return name, given[name]


def read_choices(fields: Fields) -> int:
    """`best_of` would generate more choices than it returns; here it may only repeat `n`."""
    n = fields.integer("n", *map(int, RANGES["n"])) or 1
    best_of = fields.integer("best_of", 1)
    if best_of is not None and best_of != n:
        raise fields.wrong("best_of", f"must be equal to n, which is {n}: nothing else is supported")
    return n


def read_min_tokens(fields: Fields, name: str, max_tokens: int | None) -> int:
    min_tokens = fields.integer("min_tokens", 0) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise fields.wrong("min_tokens", f"is {min_tokens}, more than {name}, which is {max_tokens}")
    return min_tokens


def read_prompt_logprobs(fields: Fields) -> int | None:
    count = fields.integer("prompt_logprobs", *map(int, RANGES["prompt_logprobs"]))
    if count is not None and fields.data.get("stream"):
        raise fields.wrong("prompt_logprobs", "is for answers that are not streamed: leave out one of the two")
    return count


def read_salt(fields: Fields) -> str:
    """Prompts with different salts share no cached prefix."""
    salt = fields.text("cache_salt")
    if salt is not None and not 0 < len(salt) <= MAX_SALT_CHARACTERS:
        raise fields.wrong("cache_salt", f"must have 1 to {MAX_SALT_CHARACTERS} characters")
    return salt or ""


def read_stop(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop")
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise fields.typed("stop", value, "a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise fields.wrong("stop", f"may hold at most {MAX_STOPS} strings")
    for stop in stops:
        if not isinstance(stop, str):
            raise fields.wrong("stop", f"must hold strings only, not {kind_of(stop)}")
        if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            raise fields.wrong("stop", f"must hold strings of 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(dict.fromkeys(stops))


@dataclass(frozen=True, slots=True)
class Delivery:
    """How the answer is to come."""

    stream: bool
    include_usage: bool
    continuous_usage: bool
    token_ids: bool


def read_delivery(fields: Fields) -> Delivery:
    stream = fields.boolean("stream", False)
    options = fields.object("stream_options")
    if options is not None and not stream:
        raise fields.wrong("stream_options", "is for streams only: leave it out or set stream")
    options = options or Fields({})
    delivery = Delivery(
        stream,
        options.boolean("include_usage", False),
        options.boolean("continuous_usage_stats", False),
        fields.boolean("return_token_ids", False),
    )
    options.neutral({"include_obfuscation": (False,)})
    options.finish()
    return delivery
