# SPDX-License-Identifier: Apache-2.0
"""Parser of /v1/messages: from JSON to the request of a chat. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pontil.http.anthropic.content_blocks import (
    TEXTS,
    TTLS,
    TURNS,
    Conversation,
    SystemText,
    read_control,
    read_system,
    read_turns,
)
from pontil.http.anthropic.thinking_seal import ThinkingSeal
from pontil.http.anthropic.tools import (
    CHOICE,
    TOOLS,
    OfferedTools,
    SentChoice,
    ToolReferences,
    read_choice,
    read_tools,
)
from pontil.http.fields.client_fields import UNSUPPORTED
from pontil.http.fields.delivery import Delivery
from pontil.http.fields.kv_transfer import KV_TRANSFER
from pontil.http.fields.prompt import PROMPT, prompt_fields
from pontil.http.fields.sampling import SAMPLING, THINKING_BUDGET, LogprobFields, sampling_fields
from pontil.http.fields.structured_output import OutputStructure, schema_structure
from pontil.http.fields.tools import ToolChoice
from pontil.http.openai.chat.kept_beginning import KeptBeginning, longest_kept
from pontil.http.openai.chat.prompt import CHAT_PROMPT, MAX_OPTION, chat_prompt
from pontil.http.openai.chat.request import CHAT_DEFAULTS, ChatRequest
from pontil.http.schema.parameter import Parameter, ParameterTable, Schema, opened
from pontil.http.schema.parameter_types import (
    FlagType,
    InertType,
    IntegerType,
    NeutralType,
    ObjectType,
    OptionsType,
    ShapedType,
    TextType,
    WordType,
)
from pontil.http.schema.reader import Fields, IgnoredFields

THINKING = ("enabled", "adaptive", "disabled")
MAX_SHORT_CHARACTERS = 512
EFFORT = "output_config.effort"
# Parameters with the effect that they have in a chat, beside Anthropic's own.
OF_CHATS = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("min_tokens", "skip_special_tokens", "ignore_eos", "seed", "stop_token_ids", "bad_token_ids"),
    *("allowed_token_ids", "logit_bias", "chat_template_kwargs", "cache_salt", "prompt_cache_key", "priority"),
)
# Parameters of chats: what to use instead.
ELSEWHERE = {
    "stop": "use stop_sequences",
    "max_completion_tokens": "use max_tokens",
    "max_output_tokens": "use max_tokens",
    "thinking_token_budget": "use thinking.budget_tokens",
    "reasoning_effort": "use output_config.effort",
    "response_format": "use output_config.format",
    "n": "one message is answered",
    "logprobs": "use /v1/chat/completions",
}


@dataclass(frozen=True, slots=True)
class SentThinking:
    """A request's `thinking`: whether it is wanted, and the most tokens of it, if a budget was given."""

    wanted: bool = False
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """A request for a message: the same as a `chat`, whose answer has at most `max_tokens`, or what the context leaves.
    `thinks` asks the model to reason, and shows it."""

    chat: ChatRequest
    max_tokens: int | None
    thinks: bool


def read_messages_request(
    data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None, *, seal: ThinkingSeal
) -> MessagesRequest:
    """Parse the request. Raises RequestError, naming the parameter, for anything invalid."""
    return messages_request(Fields(data, vocab_size=vocab_size, ignored=ignored), TABLE, seal)


def read_count_request(
    data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None, *, seal: ThinkingSeal
) -> MessagesRequest:
    """Parse a request whose input is to be counted, which needs no max_tokens."""
    return messages_request(Fields(data, vocab_size=vocab_size, ignored=ignored), COUNT_TABLE, seal)


def messages_request(fields: Fields, table: ParameterTable, seal: ThinkingSeal) -> MessagesRequest:
    values = table.read(fields)
    offered: OfferedTools = values["tools"] or OfferedTools()
    conversation = Conversation(seal, ToolReferences(offered).read)
    system: SystemText = values["system"] or SystemText("", ())
    if system.text:
        conversation.messages.append({"role": "system", "content": system.text})
    conversation.read(values["messages"])
    if all(message["role"] == "system" for message in conversation.messages):
        raise fields.wrong("messages", "hold no turn of the user: give at least one")
    thinking = values["thinking"] or SentThinking()
    if thinking.budget is not None and values["max_tokens"] is not None and thinking.budget >= values["max_tokens"]:
        says = f"is {values['max_tokens']} and must be above thinking.budget_tokens, which is {thinking.budget}"
        raise fields.wrong("max_tokens", says)
    output, sent_choice = (
        values["output_config"] or {},
        values["tool_choice"] or SentChoice(ToolChoice("auto"), parallel=True),
    )
    if output.get("format") and values["output_format"]:
        raise fields.wrong("output_format", "is the older name of output_config.format: give one of them")
    # The answer goes on with what the assistant has begun.
    goes_on = conversation.messages[-1]["role"] == "assistant"
    if goes_on and not conversation.messages[-1].get("content"):
        raise fields.wrong("messages", "end with a turn of the assistant without text: let one of the user follow")
    chat_values = (
        {**CHAT_DEFAULTS}
        | {name: values[name] for name in OF_CHATS}
        | {
            "messages": tuple(conversation.messages),
            "tools": offered.tools,
            "tool_choice": sent_choice.choice,
            "parallel_tool_calls": sent_choice.parallel,
            "stop": values["stop_sequences"],
            "max_tokens": values["max_tokens"],
            "continue_final_message": goes_on,
            "response_format": output.get("format") or values["output_format"],
            "reasoning_effort": output.get("effort"),
            THINKING_BUDGET.name: thinking.budget,
            "service_tier": TIERS[values["service_tier"]],
        }
    )
    prompt = chat_prompt(fields, chat_values, {"reasoning_effort": EFFORT})
    kept = longest_kept(kept_beginnings(system, offered, conversation, values["cache_control"]))
    shown = tuple(tool for tool in prompt.tools.shown if tool["function"]["name"] not in offered.deferred)
    chat = ChatRequest(
        model=values["model"],
        prompt=replace(prompt, tools=replace(prompt.tools, shown=shown, place="tools[%d].")),
        sampling=sampling_fields(fields, chat_values, ("max_tokens",), LogprobFields(None, None)),
        delivery=Delivery(values["stream"], include_usage=True, continuous_usage=False, token_ids=False),
        handling=prompt_fields(fields, chat_values),
        include_reasoning=thinking.wanted,
        kv_transfer=values["kv_transfer_params"],
        kept=kept,
    )
    return MessagesRequest(chat, values["max_tokens"], thinking.wanted)


def kept_beginnings(
    system: SystemText, offered: OfferedTools, conversation: Conversation, whole: int | None
) -> Iterator[KeptBeginning]:
    """Yield what blocks ask to be leased, in the order of the prompt: templates tell of tools behind the system's
    text."""
    yield from system.marks
    if offered.seconds is not None:
        yield KeptBeginning(offered.seconds, 1 if system.text else 0)
    yield from conversation.marks
    if whole is not None:
        yield KeptBeginning(whole)


def read_thinking(fields: Fields, name: str) -> SentThinking:
    """Read whether the model is to reason, and the most tokens of that. A budget of reasoning that is not asked for has
    no effect."""
    thinking = fields.required_object(name)
    kind = thinking.text("type")
    if kind not in THINKING:
        raise thinking.unfit("type", kind, f"one of {', '.join(THINKING)}")
    budget = thinking.integer("budget_tokens", 1)
    if kind == "disabled":
        thinking.without_effect("budget_tokens")
    thinking.ignore_rest()
    return SentThinking(kind != "disabled", budget if kind != "disabled" else None)


def read_output_format(fields: Fields, name: str) -> OutputStructure:
    format_fields = fields.required_object(name)
    if (kind := format_fields.text("type")) != "json_schema":
        raise format_fields.unfit("type", kind, '"json_schema"')
    schema = format_fields.take("schema")
    if schema is None:
        raise format_fields.wrong("schema", "is missing: give a JSON schema")
    format_fields.ignore_rest()
    return schema_structure(format_fields, "schema", schema)


THINKING_SCHEMA = opened(
    ["type"], type={"enum": list(THINKING)}, budget_tokens={"type": ["integer", "null"], "minimum": 1}
)
FORMAT = ShapedType(
    read_output_format,
    {"title": '`{"type": "json_schema", "schema": …}`'}
    | opened(["type", "schema"], type={"const": "json_schema"}, schema={"type": ["object", "boolean"]}),
)
OUTPUT_CONFIG = (
    Parameter("effort", TextType(0, MAX_OPTION), "a variable of the template, where it reads it"),
    Parameter("format", FORMAT, "the JSON schema that the answer follows"),
)
CONTROL_SCHEMA: Schema = {
    "title": '`{"type": "ephemeral", "ttl": …}` of `5m` or `1h`',
    "type": "object",
    "properties": {"type": {"enum": ["ephemeral", None]}, "ttl": {"enum": [*TTLS, None]}},
}
SHORT = TextType(0, MAX_SHORT_CHARACTERS)
# Anthropic's words for classes, each with that of chats.
TIERS = {"auto": "auto", "standard_only": "default"}
CHATS = {declared.name: declared for declared in (*CHAT_PROMPT, *SAMPLING, *PROMPT)}
OWN = (
    Parameter("model", TextType(), "the name of a model that is served, or one that begins with `claude-`"),
    Parameter("messages", ShapedType(read_turns, TURNS), "the turns of user and assistant", required=True),
    Parameter("max_tokens", IntegerType(1), "the most tokens of the answer, if the context has room", required=True),
    Parameter("system", ShapedType(read_system, TEXTS), "a system message before the others"),
    Parameter("stream", FlagType(), "send the answer as events while it is made", False),
    Parameter("stop_sequences", CHATS["stop"].kind, "texts that end the answer where they appear in it", ()),
    Parameter("tools", ShapedType(read_tools, TOOLS), "functions that the model may call", ()),
    Parameter("tool_choice", ShapedType(read_choice, CHOICE), "whether one is called, and which, or several"),
    Parameter(
        "thinking",
        ShapedType(read_thinking, {"title": '`{"type": …}` of `enabled`, `adaptive` or `disabled`'} | THINKING_SCHEMA),
        "have a model that can do so reason, at most `budget_tokens`, and show it",
    ),
    Parameter("output_config", OptionsType(OUTPUT_CONFIG), "of the answer"),
    Parameter("output_format", FORMAT, "the older name of output_config.format"),
    Parameter("service_tier", WordType(tuple(TIERS)), "the class of the request, at most that of its key", "auto"),
    Parameter("cache_control", ShapedType(read_control, CONTROL_SCHEMA), "with a `ttl`: lease the prompt's KV so long"),
)
# Sent by Anthropic's clients; a strict server takes them too.
INERT = (
    Parameter("metadata", InertType(ObjectType(), None), "who the end user is"),
    Parameter("context_management", InertType(ObjectType(), ({},)), "clear what is old in a long conversation"),
    Parameter("inference_geo", InertType(SHORT), "where the model runs"),
)
DECLARED = (
    *OWN,
    *(CHATS[name] for name in OF_CHATS),
    KV_TRANSFER,
    *INERT,
    Parameter("container", NeutralType(), "where code would run"),
    Parameter("mcp_servers", NeutralType(([],)), "servers of tools"),
    *(
        Parameter(
            name, NeutralType((1,) if name == "n" else (), f"is no parameter of a message: {instead}"), "of chats"
        )
        for name, instead in ELSEWHERE.items()
    ),
)
NAMES = {declared.name for declared in DECLARED}
MESSAGES = (*DECLARED, *(declared for declared in UNSUPPORTED if declared.name not in NAMES))
COUNT = tuple(declared.optional if declared.name == "max_tokens" else declared for declared in MESSAGES)
TABLE, COUNT_TABLE = ParameterTable(MESSAGES), ParameterTable(COUNT)
