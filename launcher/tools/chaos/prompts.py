# SPDX-License-Identifier: Apache-2.0
"""The prompts of the load: chats and completions of several lengths, greedy and sampled, streamed and not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
OPENING = "A ferry leaves the old harbour at seven, turns round the lighthouse and reads the tide by the third buoy. "
LONG = "Each station writes down the wind, the water and the number of boats, and sends it on to the next. " * 12
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
DRAWN: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "ignore_eos": True}
PORT = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "boats": {"type": "integer"}},
    "required": ["name", "boats"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class ChaosPrompt:
    """One request of the load. Those of one `family` begin alike and may find each other's prefix cached; without one
    each is computed anew."""

    name: str
    path: str
    fields: Mapping[str, Any]
    streamed: bool = True
    family: str | None = None

    @property
    def can_continue(self) -> bool:
        """True if the server can continue its stream: it keeps no logprobs."""
        return self.streamed and "logprobs" not in self.fields

    def body(self, model: str, salt: str) -> dict[str, Any]:
        """Return the request. What was sent with another salt is not found cached."""
        request = {"model": model, "cache_salt": salt, "return_token_ids": True, **self.fields}
        return request | ({"stream": True, "stream_options": {"include_usage": True}} if self.streamed else {})


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


PROMPTS = (
    ChaosPrompt("completion, greedy", COMPLETIONS, {"prompt": OPENING, "max_tokens": 128, **GREEDY}),
    ChaosPrompt("completion, drawn", COMPLETIONS, {"prompt": OPENING, "max_tokens": 96, "seed": 11, **DRAWN}),
    ChaosPrompt(
        "completion, long prompt", COMPLETIONS, {"prompt": LONG + OPENING, "max_tokens": 64, **GREEDY}, family="long"
    ),
    ChaosPrompt(
        "completion, same beginning",
        COMPLETIONS,
        {"prompt": LONG + "At noon", "max_tokens": 64, "seed": 12, **DRAWN},
        family="long",
    ),
    ChaosPrompt(
        "completion, two choices", COMPLETIONS, {"prompt": OPENING * 2, "max_tokens": 64, "n": 2, "seed": 13, **DRAWN}
    ),
    ChaosPrompt("completion, whole", COMPLETIONS, {"prompt": OPENING, "max_tokens": 64, **GREEDY}, streamed=False),
    ChaosPrompt(
        "completion, logprobs and penalties",
        COMPLETIONS,
        {
            "prompt": OPENING,
            "max_tokens": 64,
            "seed": 14,
            "logprobs": 2,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.3,
            **DRAWN,
        },
    ),
    ChaosPrompt("chat, greedy", CHATS, {"messages": said(OPENING), "max_tokens": 128, **GREEDY}),
    ChaosPrompt("chat, drawn", CHATS, {"messages": said(OPENING), "max_tokens": 96, "seed": 15, **DRAWN}),
    ChaosPrompt(
        "chat, whole", CHATS, {"messages": said("Name a port."), "max_tokens": 48, "seed": 16, **DRAWN}, streamed=False
    ),
    ChaosPrompt(
        "chat, structured",
        CHATS,
        {
            "messages": said("Describe a port."),
            "max_tokens": 96,
            "seed": 17,
            "temperature": 0.9,
            "response_format": {"type": "json_schema", "json_schema": {"name": "port", "schema": PORT}},
        },
    ),
)
