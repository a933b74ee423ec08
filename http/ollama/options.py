# SPDX-License-Identifier: Apache-2.0
"""The object `options` of Ollama's requests: sampling parameters, most by the names that chats have for them. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pontil.http.fields.prompt import PROMPT
from pontil.http.fields.sampling import SAMPLING, THINKING_BUDGET, LogprobFields, SamplingFields, sampling_fields
from pontil.http.fields.tools import TOOLS
from pontil.http.openai.chat.request import CHAT_DEFAULTS
from pontil.http.schema.parameter import Parameter
from pontil.http.schema.parameter_types import FlagType, InertType, IntegerType, NeutralType, NumberType, OptionsType
from pontil.http.schema.reader import Fields

LEAST, MOST = -(1 << 31), (1 << 31) - 1
FILL = -2
# Ollama's names of parameters that chats have under another one.
RENAMED = {"repeat_penalty": "repetition_penalty"}
OF_CHATS = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed", "stop"),
    *("min_tokens", "skip_special_tokens", "ignore_eos", "stop_token_ids", "bad_token_ids", "allowed_token_ids"),
    *("logit_bias", "thinking_token_budget", "cache_salt", "prompt_cache_key", "priority"),
)
# Settings of the program that runs a model, which are this server's here.
NUMBERS = ("num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread")
FLAGS = (
    *("numa", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mmap", "use_mlock", "embedding_only"),
    "penalize_newline",
)
RUNNER = "of the program that runs a model"
WINDOW = "must be -1: penalties are for all of the prompt and the answer here"
CHATS = {declared.name: declared for declared in (*SAMPLING, THINKING_BUDGET, *PROMPT)}
TOOL_LIST, *TOOL_CHOICE = TOOLS
CHOICE = tuple(declared.name for declared in TOOL_CHOICE)
OPTIONS = (
    Parameter("num_predict", IntegerType(FILL), "the most tokens of the answer; below 1: what the context leaves"),
    *(CHATS[name] for name in OF_CHATS),
    *(replace(CHATS[theirs], name=name) for name, theirs in RENAMED.items()),
    *TOOL_CHOICE,
    Parameter("repeat_last_n", NeutralType((-1,), WINDOW), "how far back penalties look"),
    Parameter("typical_p", NeutralType((1,)), "another way to draw"),
    Parameter("tfs_z", NeutralType((1,)), "another way to draw"),
    Parameter("mirostat", NeutralType((0,)), "another way to draw"),
    *(
        Parameter(name, InertType(NumberType(0, MOST), None), "of mirostat")
        for name in ("mirostat_tau", "mirostat_eta")
    ),
    *(Parameter(name, InertType(IntegerType(LEAST, MOST), None), RUNNER) for name in NUMBERS),
    *(Parameter(name, InertType(FlagType(), None), RUNNER) for name in FLAGS),
)
OPTIONS_TYPE = OptionsType(OPTIONS)
DEFAULTS: Mapping[str, Any] = {declared.name: declared.default for declared in OPTIONS}
# `num_predict` is no promise that the context has as much room, so that it is no `max_tokens`.
UNASKED: Mapping[str, Any] = {**CHAT_DEFAULTS, "max_tokens": None}


def most_tokens(options: Mapping[str, Any]) -> int | None:
    """Return the most tokens of an answer; None for what the context leaves."""
    number = options["num_predict"]
    return number if number is not None and number > 0 else None


def sampling_of(fields: Fields, values: Mapping[str, Any], logprobs: LogprobFields) -> SamplingFields:
    """Return the sampling of a request with these options and this format. Its errors name the option."""
    options, stated = values["options"] or DEFAULTS, fields.object("options") or fields
    chat_values = (
        {**UNASKED}
        | {name: options[name] for name in OF_CHATS}
        | {theirs: options[name] for name, theirs in RENAMED.items()}
        # -1 is Ollama's number for a seed that is drawn.
        | {"seed": None if options["seed"] == -1 else options["seed"], "response_format": values["format"]}
    )
    return sampling_fields(stated, chat_values, ("max_tokens",), logprobs)


def prompt_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of PROMPT."""
    options = values["options"] or DEFAULTS
    return {**UNASKED} | {declared.name: options[declared.name] for declared in PROMPT if declared.name in OF_CHATS}
