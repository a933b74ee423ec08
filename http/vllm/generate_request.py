# SPDX-License-Identifier: Apache-2.0
"""Parser of SGLang's /generate: one prompt with its sampling parameters, read as a completion. Pure."""

from collections.abc import Mapping
from typing import Any

from pontil.http.fields.sampling import SAMPLING
from pontil.http.openai.completions.request import CompletionRequest, read_completion
from pontil.http.schema.parameter import Parameter, read_all
from pontil.http.schema.parameter_types import FlagType, IdsType, NeutralType, ObjectType, TextType
from pontil.http.schema.reader import Fields, IgnoredFields
from pontil.runtime.errors import RequestError

DEFAULT_NEW_TOKENS = 128
MAX_INPUT_IDS = 1 << 20
# SGLang's names of parameters that completions have under another one.
RENAMED = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output",
    "sampling_seed": "seed",
}
TAKEN = {one.name: one.name for one in SAMPLING} | RENAMED
GENERATE = (
    Parameter("text", TextType(), "a text"),
    Parameter("input_ids", IdsType(MAX_INPUT_IDS), "token ids instead of the text"),
    Parameter("sampling_params", ObjectType(), "parameters of the same names as those of completions, or SGLang's", {}),
    Parameter("stream", FlagType(), "send the text so far as events while it is made", False),
    Parameter("return_logprob", NeutralType((False,)), "logprobs: for completions"),
    Parameter("image_data", NeutralType(), "images"),
    Parameter("lora_path", NeutralType(), "an adapter"),
    Parameter("session_params", NeutralType(), "a session"),
)


def read_generate(data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None) -> CompletionRequest:
    """Parse the request. Raises RequestError, naming the parameter, for anything invalid."""
    fields = Fields(data, vocab_size=vocab_size, ignored=ignored)
    values = read_all(fields, GENERATE)
    if (values["text"] is None) == (values["input_ids"] is None):
        raise fields.wrong("text", "or input_ids has to be there, and only one of them", "missing_required_parameter")
    name = "text" if values["text"] is not None else "input_ids"
    prompt = values[name] if name == "text" else list(values[name])
    translated = {"prompt": prompt, "stream": values["stream"], "max_tokens": DEFAULT_NEW_TOKENS}
    names = {"prompt": name}
    for given, value in values["sampling_params"].items():
        if given not in TAKEN:
            says = f"sampling_params.{given:.60} is no sampling parameter: leave it out"
            raise RequestError(says, param="sampling_params", code="unknown_parameter")
        if value is not None:
            translated[TAKEN[given]] = value
            names[TAKEN[given]] = f"sampling_params.{given}"
    if translated.get("n") not in (None, 1):
        raise RequestError("sampling_params.n must be 1: ask /v1/completions for more", param="sampling_params.n")
    try:
        return read_completion(translated, vocab_size, ignored)
    except RequestError as error:
        raise renamed(error, names) from None


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """Return the error of a completion's parameter with the name that the client has used."""
    root = (error.param or "").partition(".")[0].partition("[")[0]
    if root not in names:
        return error
    param = f"{names[root]}{(error.param or '').removeprefix(root)}"
    return RequestError(str(error).replace(root, names[root], 1), status=error.status, param=param, code=error.code)
