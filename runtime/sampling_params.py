# SPDX-License-Identifier: Apache-2.0
"""The generation settings of a request, checked once at the edge and carried unchanged to every worker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields
from typing import Any, cast

from pontil.runtime.errors import MalformedFrame, RequestError

MAX_BIAS = 100.0
# Below this temperature the likeliest token is taken, as in vLLM: others could be drawn only where their logits differ
# in the last bits.
GREEDY_BELOW = 1e-5


def declared(
    default: Any,
    says: str,
    low: float | None = None,
    high: float | None = None,
    *,
    above: bool = False,
    also: int | None = None,
) -> Any:
    """Declare a parameter by what it does and by the values that it may have, from `low` to `high`; `above` excludes
    `low`, which clients may write as `also`. What the API reads and describes, and what is checked, follows this."""
    return field(default=default, metadata={"says": says, "low": low, "high": high, "above": above, "also": also})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's generation settings. A `temperature` of 0, or below GREEDY_BELOW, is greedy; `top_k` 0, `top_p` 1
    and `min_p` 0 keep the whole vocabulary, as an empty `allowed_token_ids` does. With `max_tokens` 0 the prompt
    alone is computed.

    `seed` is always set: the proxy draws one when the client gave none, so that a replay draws the same tokens.
    `logprobs` None asks for none, k for those of the token itself and of the k most likely ones, or of
    `logprob_token_ids` instead if there are any; `prompt_logprobs` asks for k ones of every prompt token but the first.
    `top_logits` asks for so many of the highest logits of each token, to the bit, for a receipt.
    `grammar`, as `runtime/grammar/grammar_text.py` writes it, constrains the answer's text. Reasoning, which the prompt
    has left as `thought` names it there, has at most `thinking_token_budget` tokens. With `hide_end_token`,
    which the server sets, the token that ends an answer is not shown, unless what ended it is to be.

    Four facts follow from the others, and are made once, since they are asked of each row of each step: whether it is
    `greedy`, whether it `penalizes` tokens that are there already, whether it `edits_logits` in any way, and whether it
    `shows_logits`, as logprobs or as the highest ones.
    """

    max_tokens: int
    seed: int
    _: KW_ONLY
    temperature: float = declared(1.0, "how evenly tokens are drawn; 0 takes the likeliest", 0.0, 2.0)
    top_p: float = declared(1.0, "draw from the likeliest tokens that have this mass together", 0.0, 1.0, above=True)
    top_k: int = declared(0, "draw from so many of the likeliest; 0, -1: from all", 0, 1 << 31, also=-1)
    min_p: float = declared(0.0, "draw from tokens at least this likely, compared with the likeliest", 0.0, 1.0)
    presence_penalty: float = declared(0.0, "taken from the logits of tokens that the answer has", -2.0, 2.0)
    frequency_penalty: float = declared(0.0, "the same, for each time that it has them", -2.0, 2.0)
    repetition_penalty: float = declared(
        1.0, "divides the logits of tokens that prompt or answer have", 0.0, 10.0, above=True
    )
    n: int = declared(1, "how many answers to each prompt", 1, 128)
    min_tokens: int = declared(0, "nothing ends the answer before it has so many tokens", 0)
    logprobs: int | None = declared(
        None, "show the logprobs of the answer's tokens and of so many of the likeliest", 0, 20
    )
    prompt_logprobs: int | None = declared(
        None, "show the logprobs of the prompt's tokens and of so many of the likeliest", 0, 20
    )
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    logprob_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    include_stop_str_in_output: bool = declared(False, "show what ended the answer")
    skip_special_tokens: bool = declared(True, "do not show special tokens")
    ignore_eos: bool = declared(False, "go on after the model's own end")
    hide_end_token: bool = False
    grammar: str | None = None
    thinking_token_budget: int | None = None
    thought: str | None = None
    top_logits: int = 0
    greedy: bool = field(init=False, repr=False, compare=False)
    penalizes: bool = field(init=False, repr=False, compare=False)
    edits_logits: bool = field(init=False, repr=False, compare=False)
    shows_logits: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        penalizes = self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        edits = self.logit_bias or self.bad_token_ids or self.allowed_token_ids or self.min_tokens
        object.__setattr__(self, "greedy", self.temperature < GREEDY_BELOW)
        object.__setattr__(self, "penalizes", penalizes)
        object.__setattr__(self, "edits_logits", bool(edits) or penalizes)
        object.__setattr__(self, "shows_logits", self.logprobs is not None or self.top_logits > 0)

    def to_wire(self) -> dict[str, Any]:
        """Return the fields as they are: all are plain values, so the deep copy of dataclasses.asdict would be
        wasted."""
        return {name: getattr(self, name) for name in STATED}

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> SamplingParams:
        """Build the settings from a message. Raise MalformedFrame for a missing field or a wrong type; ignore unknown
        fields."""
        values: dict[str, Any] = {}
        for parameter in STATED.values():
            if parameter.name in data:
                values[parameter.name] = checked(parameter.name, data[parameter.name], cast("str", parameter.type))
            elif parameter.default is MISSING:
                raise MalformedFrame(f"the sampling parameters lack {parameter.name}")
        return cls(**values)

    def check(self, vocab_size: int) -> None:
        """Raise RequestError for a value that no sampler can obey: numbers out of their range or not finite, and ids
        outside the vocabulary. Costs a few microseconds where the lists are empty."""
        for name, low, high, above in RANGES:
            value = getattr(self, name)
            if value is not None and (not low <= value <= high or (value == low and above)):
                lower_bound = "above" if above else "at least"
                raise RequestError(f"{name} must be {lower_bound} {low:g} and at most {high:g}", param=name)
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise RequestError("min_tokens must be at least 0 and at most max_tokens", param="min_tokens")
        if self.thinking_token_budget is not None and self.thinking_token_budget < 0:
            raise RequestError("thinking_token_budget must be at least 0", param="thinking_token_budget")
        for name in ("stop_token_ids", "bad_token_ids", "allowed_token_ids", "logprob_token_ids"):
            check_ids(name, getattr(self, name), vocab_size)
        check_ids("logit_bias", [token for token, _ in self.logit_bias], vocab_size)
        if not all(abs(bias) <= MAX_BIAS for _, bias in self.logit_bias):
            raise RequestError(f"logit_bias must lie between {-MAX_BIAS:g} and {MAX_BIAS:g}", param="logit_bias")


STATED: dict[str, Field[Any]] = {parameter.name: parameter for parameter in fields(SamplingParams) if parameter.init}
DECLARED: dict[str, Field[Any]] = {
    parameter.name: parameter for parameter in fields(SamplingParams) if parameter.metadata
}
# Name, lowest value, highest value, and whether the lowest one is not allowed itself.
RANGES: tuple[tuple[str, float, float, bool], ...] = tuple(
    (parameter.name, parameter.metadata["low"], parameter.metadata["high"], parameter.metadata["above"])
    for parameter in DECLARED.values()
    if parameter.metadata["high"] is not None
)


def check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    if not all(0 <= token < vocab_size for token in ids):
        raise RequestError(f"{name} holds an id outside the vocabulary: ids go from 0 to {vocab_size - 1}", param=name)


PLAIN: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "int | None": (int, type(None)),
    "str | None": (str, type(None)),
    "float": (float, int),
    "bool": (bool,),
}
ITEMS = {"tuple[str, ...]": str, "tuple[int, ...]": int}
PAIRS = "tuple[tuple[int, float], ...]"


def checked(name: str, value: Any, kind: str) -> Any:
    """Return `value` converted to the field's type. `kind` is the annotation's text."""
    if kind in PLAIN and type(value) in PLAIN[kind]:
        return value
    if kind in ITEMS and isinstance(value, list | tuple) and all(type(item) is ITEMS[kind] for item in value):
        return tuple(value)
    if kind == PAIRS and isinstance(value, list | tuple) and all(map(is_pair, value)):
        return tuple((token, float(number)) for token, number in value)
    raise MalformedFrame(f"the sampling parameter {name} has a value of the wrong type")


def is_pair(value: Any) -> bool:
    """Return whether this is a token id and a number."""
    return (
        isinstance(value, list | tuple) and len(value) == 2 and type(value[0]) is int and type(value[1]) in (int, float)
    )
