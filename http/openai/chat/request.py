# SPDX-License-Identifier: Apache-2.0
"""Parser of /v1/chat/completions: from JSON to a frozen request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pontil.http.fields.audio_output import AUDIO_OUTPUT, AudioOutput, audio_output
from pontil.http.fields.client_fields import INERT, UNSUPPORTED
from pontil.http.fields.delivery import DELIVERY, Delivery, delivery_fields
from pontil.http.fields.kv_transfer import KV_TRANSFER, KVTransferFields
from pontil.http.fields.prompt import PROMPT, PromptFields, prompt_fields, special_tokens
from pontil.http.fields.recording import GivenMedia, HeardMedia
from pontil.http.fields.sampling import (
    SAMPLING,
    THINKING_BUDGET,
    LogprobFields,
    SamplingFields,
    parameter,
    sampling_fields,
)
from pontil.http.openai.chat.function_messages import FUNCTIONS, OLDER_TOOLS, named_as_functions, with_functions
from pontil.http.openai.chat.kept_beginning import RETENTION, KeptBeginning, retained, without_retention
from pontil.http.openai.chat.prompt import CHAT_PROMPT, ChatPrompt, chat_prompt
from pontil.http.schema.parameter import Parameter, ParameterTable
from pontil.http.schema.parameter_types import FlagType, IntegerType, NeutralType, TextType
from pontil.http.schema.reader import Fields, IgnoredFields
from pontil.runtime.proxy.requests.generation import Generation, PromptWork


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completion request. `prompt` is the input of the chat template. Reasoning is left out of the reply unless
    `include_reasoning`. With `audio` the answer comes in sound too. `media` are the recordings and images of the
    prompt, once they are read for a model that encodes them. `kept` is the beginning that is to be leased."""

    model: str | None
    prompt: ChatPrompt
    sampling: SamplingFields
    delivery: Delivery
    handling: PromptFields
    include_reasoning: bool
    echo: bool = False
    audio: AudioOutput | None = None
    kv_transfer: KVTransferFields | None = None
    media: GivenMedia | None = None
    kept: KeptBeginning | None = None

    def expanded(self, ids: list[int]) -> list[int]:
        """Return the ids of the prompt with a mark for each row of its media."""
        return ids if self.media is None else self.media.expanded(ids)

    def beginning(self, ids: list[int]) -> list[int]:
        """Return the same of ids with which the prompt begins."""
        return ids if self.media is None else self.media.beginning(ids)

    def heard(self, heard: HeardMedia) -> "ChatRequest":
        """Return it with what stands for its recordings and images in their places."""
        if not self.prompt.media:
            return self
        kept = None if self.kept is None else self.kept.heard(self.prompt, heard.texts)
        return replace(self, prompt=self.prompt.heard(heard.texts), media=heard.media, kept=kept)

    def work(self, work: Generation) -> PromptWork:
        """Return the work of an answer in text to this prompt: with its media, where it has any."""
        return work if self.media is None or self.audio is not None else self.media.work(work)


def read_chat(data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None) -> ChatRequest:
    """Parse the request. Raises RequestError, naming the parameter, for anything invalid."""
    fields = Fields(data, vocab_size=vocab_size, ignored=ignored)
    return chat_of(fields, TABLE.read(fields))


def chat_of(fields: Fields, values: Mapping[str, Any]) -> ChatRequest:
    """Build the request from the values of CHAT. Raises RequestError for values that contradict each other."""
    values = with_functions(fields, values)
    prompt = chat_prompt(fields, values)
    if values[FUNCTIONS]:
        prompt = replace(prompt, tools=named_as_functions(prompt.tools))
    limits = ("max_completion_tokens", "max_tokens")
    return ChatRequest(
        model=values["model"],
        prompt=prompt,
        sampling=sampling_fields(fields, values, limits, logprobs_of(fields, values)),
        delivery=delivery_fields(fields, values),
        handling=prompt_fields(fields, values),
        include_reasoning=values["include_reasoning"],
        echo=values["echo"],
        audio=audio_output(fields, values),
        kv_transfer=values["kv_transfer_params"],
        kept=retained(values),
    )


def logprobs_of(fields: Fields, values: Mapping[str, Any]) -> LogprobFields:
    """Return the logprob options: `logprobs` turns them on, `top_logprobs` is the number of alternatives per token."""
    wants_logprobs, top = values["logprobs"], values["top_logprobs"]
    if top and not wants_logprobs:
        raise fields.wrong("top_logprobs", "needs logprobs to be true")
    return LogprobFields((top or 0) if wants_logprobs else None, values["prompt_logprobs"])


CHAT = (
    Parameter("model", TextType(), "the name of a model that is served; absent: the first one"),
    *CHAT_PROMPT,
    Parameter(
        "max_completion_tokens", IntegerType(1), "the most tokens of each answer; absent: the rest of the context"
    ),
    Parameter("max_tokens", IntegerType(1), "the older name of max_completion_tokens"),
    Parameter("logprobs", FlagType(), "show the logprobs of the answer's tokens", False),
    parameter("logprobs", "top_logprobs", "and of so many of the likeliest"),
    *SAMPLING,
    THINKING_BUDGET,
    *DELIVERY,
    special_tokens(False),
    *PROMPT,
    Parameter("include_reasoning", FlagType(), "show the reasoning of a model that reasons", True),
    Parameter("echo", FlagType(), "show the last message before the answer, where the answer goes on with it", False),
    *OLDER_TOOLS,
    *AUDIO_OUTPUT,
    Parameter("prediction", NeutralType(), "a text that the answer may repeat"),
    Parameter("web_search_options", NeutralType(), "search the web"),
    Parameter("prompt", NeutralType(("", []), "is for /v1/completions: send messages"), "text or token ids"),
    Parameter("suffix", NeutralType(("",)), "text after the answer"),
    KV_TRANSFER,
    RETENTION,
    *without_retention(INERT),
    *UNSUPPORTED,
)
TABLE = ParameterTable(CHAT)
CHAT_DEFAULTS: Mapping[str, Any] = {
    declared.name: declared.default
    for declared in (*CHAT_PROMPT, *SAMPLING, THINKING_BUDGET, special_tokens(False), *PROMPT)
}
"""The values of a chat that asks for nothing, for the parsers of other forms of one."""
