# SPDX-License-Identifier: Apache-2.0
"""SGLang's /generate: its parser, from JSON to a completion with its sampling parameters, and its JSON. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pontil.http.fields.sampling import SAMPLING
from pontil.http.openai.completions.request import CompletionRequest, read_completion
from pontil.http.schema.parameter import Parameter, read_all
from pontil.http.schema.parameter_types import FlagType, IdsType, NeutralType, ObjectType, TextType
from pontil.http.schema.reader import Fields, IgnoredFields
from pontil.http.stream.receipts import receipt_field
from pontil.http.stream.reply_shape import CompletionShape, ReplyChoice
from pontil.http.stream.schema_watch import SchemaWatch
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.processes.verdict import Verdict
from pontil.runtime.proxy.requests.answer import Delta, Ended
from pontil.runtime.proxy.requests.stream import Stream

DEFAULT_NEW_TOKENS = 128
MAX_INPUT_IDS = 1 << 20
# SGLang's names of parameters that completions have under another one.
RENAMED = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output",
    "sampling_seed": "seed",
}
TAKEN = {parameter.name: parameter.name for parameter in SAMPLING} | RENAMED
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
    completion_body = {"prompt": prompt, "stream": values["stream"], "max_tokens": DEFAULT_NEW_TOKENS}
    names = {"prompt": name}
    for parameter_name, value in values["sampling_params"].items():
        if parameter_name not in TAKEN:
            says = f"sampling_params.{parameter_name:.60} is no sampling parameter: leave it out"
            raise RequestError(says, param="sampling_params", code="unknown_parameter")
        if value is not None:
            completion_body[TAKEN[parameter_name]] = value
            names[TAKEN[parameter_name]] = f"sampling_params.{parameter_name}"
    if completion_body.get("n") not in (None, 1):
        raise RequestError("sampling_params.n must be 1: ask /v1/completions for more", param="sampling_params.n")
    try:
        return read_completion(completion_body, vocab_size, ignored)
    except RequestError as error:
        raise renamed(error, names) from None


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """Return the error of a completion's parameter with the name that the client has used."""
    root = (error.param or "").partition(".")[0].partition("[")[0]
    if root not in names:
        return error
    param = f"{names[root]}{(error.param or '').removeprefix(root)}"
    return RequestError(str(error).replace(root, names[root], 1), status=error.status, param=param, code=error.code)


class GenerateShape(CompletionShape):
    """One answer. An event of a stream has the whole text so far, as SGLang's have; the last one has the ids too."""

    said = ""

    def whole(
        self, choices: Sequence[ReplyChoice], usage: Usage, verdicts: Mapping[int, Verdict] | None = None
    ) -> dict[str, Any]:
        (choice,) = choices
        choice_end = Ended(0, choice.reason or "stop", choice.stop_reason)
        answer = {"text": choice.text, "output_ids": choice.ids, "meta_info": self.about(usage, choice_end)}
        return answer | receipt_field(self.receipts)

    def event(self, stream: Stream, index: int, choice_event: Delta | Ended) -> bytes:
        if self.schema_watch is not None:
            self.schema_watch.observe(index, choice_event)
        if isinstance(choice_event, Ended):
            return b"" if self.schema_watch is not None else self.last(stream, choice_event)
        if not choice_event.text:
            return b""
        self.said += choice_event.text
        return framed({"text": self.said, "meta_info": self.about(stream.usage, None)})

    def closing(self, watch: SchemaWatch, stream: Stream, verdicts: Mapping[int, Verdict]) -> bytes:
        return b"".join(self.last(stream, choice_end) for choice_end in watch.ended.values())

    def last(self, stream: Stream, choice_end: Ended) -> bytes:
        answer = stream.request.answers[0]
        ids = answer.shown(answer.ids, choice_end.reason, answer.stop_match)
        return framed({"text": self.said, "output_ids": ids, "meta_info": self.about(stream.usage, choice_end)})

    def receipt_chunk(self) -> bytes:
        told = receipt_field(self.receipts)
        return framed(told) if told else b""

    def about(self, usage: Usage, choice_end: Ended | None) -> dict[str, Any]:
        return {
            "id": self.base["id"],
            "finish_reason": None if choice_end is None else finish(choice_end, usage),
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
        }


def finish(choice_end: Ended, usage: Usage) -> dict[str, Any]:
    """Return what SGLang tells of an answer's end."""
    if choice_end.reason == "length":
        return {"type": "length", "length": usage.completion_tokens}
    return {"type": choice_end.reason, "matched": choice_end.stop_reason}


def framed(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
