# SPDX-License-Identifier: Apache-2.0
"""Parameters of both endpoints that control delivery of the response."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.http.schema.parameter import Parameter
from pontil.http.schema.parameter_types import FlagType, NeutralType, OptionsType
from pontil.http.schema.reader import Fields

STREAM_OPTIONS = (
    Parameter("include_usage", FlagType(), "end with a chunk that has the usage", False),
    Parameter("continuous_usage_stats", FlagType(), "put the usage so far on every chunk", False),
    Parameter("include_obfuscation", NeutralType((False,)), "random bytes in each chunk, to hide its length"),
)
DELIVERY = (
    Parameter("stream", FlagType(), "send the answer as events while it is made", False),
    Parameter("stream_options", OptionsType(STREAM_OPTIONS), "of a stream"),
    Parameter("return_token_ids", FlagType(), "show the ids of the prompt and of the answer", False),
    Parameter("return_tokens_as_token_ids", FlagType(), "write tokens of logprobs as `token_id:` and the id", False),
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Delivery options of a response."""

    stream: bool
    include_usage: bool
    continuous_usage: bool
    token_ids: bool
    tokens_as_ids: bool = False


def delivery_fields(fields: Fields, values: Mapping[str, Any]) -> Delivery:
    stream, options = values["stream"], values["stream_options"]
    if options is not None and not stream:
        raise fields.wrong("stream_options", "is for streams only: leave it out or set stream")
    if stream and values["prompt_logprobs"] is not None:
        raise fields.wrong("prompt_logprobs", "is for answers that are not streamed: leave out one of the two")
    options, as_ids = options or {}, values["return_tokens_as_token_ids"]
    if as_ids and values["logprobs"] in (None, False):
        fields.without_effect("return_tokens_as_token_ids")
    return Delivery(
        stream,
        options.get("include_usage", False),
        options.get("continuous_usage_stats", False),
        values["return_token_ids"],
        as_ids,
    )
