# SPDX-License-Identifier: Apache-2.0
"""What both endpoints take about generation."""

from dataclasses import dataclass
from typing import Any

from pontil.http.fields import Fields
from pontil.http.json_body import kind_of
from pontil.runtime.proxy.admission import SEED_BITS, mint_seed
from pontil.runtime.sampling_params import SamplingParams

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_IDS = 64
MAX_TOP_K = 1 << 31
MAX_TEMPERATURE = 2.0

# Not supported yet: the values that ask for nothing. Null always does.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "response_format": ({"type": "text"},),
    "use_beam_search": (False,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "priority": (0,),
    "cache_salt": (),
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
    seed: int | None
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    ignore_eos: bool

    def params(self, max_tokens: int) -> SamplingParams:
        """For one prompt. A seed is minted where the client gave none."""
        return SamplingParams(
            max_tokens=max_tokens,
            seed=mint_seed() if self.seed is None else self.seed % (1 << SEED_BITS),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
            ignore_eos=self.ignore_eos,
        )


def read_sampling(fields: Fields, vocab_size: int, limits: tuple[str, ...]) -> SamplingFields:
    """`limits` are the names under which this endpoint takes the token limit, the preferred one first."""
    given = {name: fields.integer(name, 1) for name in limits}
    name = next((name for name in limits if given[name] is not None), limits[0])
    if len({value for value in given.values() if value is not None}) > 1:
        raise fields.wrong(limits[-1], f"contradicts {limits[0]}: give one of them")
    return SamplingFields(
        max_tokens=given[name],
        max_tokens_name=name,
        temperature=fields.number("temperature", 1.0, 0.0, MAX_TEMPERATURE),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0, above=True),
        # Some clients write -1 for "the whole vocabulary".
        top_k=max(0, fields.integer("top_k", -1, MAX_TOP_K) or 0),
        seed=fields.integer("seed", -(1 << 63), (1 << 63) - 1),
        stop=read_stop(fields),
        stop_token_ids=fields.integers("stop_token_ids", vocab_size, MAX_STOP_IDS),
        include_stop_str_in_output=fields.boolean("include_stop_str_in_output", False),
        skip_special_tokens=fields.boolean("skip_special_tokens", True),
        ignore_eos=fields.boolean("ignore_eos", False),
    )


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
