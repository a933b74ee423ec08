# SPDX-License-Identifier: Apache-2.0
"""Chat replies whose call stands in the older form, for requests with `functions`."""

from typing import Any

from pontil.http.openai.chat.parsed_shape import ParsedChatShape, message_of, reasoning_fields
from pontil.runtime.chat.answer_part import AnswerPart, Arguments, Call, Reasoning


class FunctionCallShape(ParsedChatShape):
    """The JSON of such a reply. It has one call at most."""

    def reason(self, index: int, reason: str) -> str:
        told = super().reason(index, reason)
        return "function_call" if told == "tool_calls" else told

    def delta_of(self, part: Reasoning | Call | Arguments) -> dict[str, Any]:
        if isinstance(part, Reasoning):
            return reasoning_fields(part.text)
        if isinstance(part, Call):
            return {"function_call": {"name": part.name, "arguments": ""}}
        return {"function_call": {"arguments": part.text}}

    def message_of(self, parts: list[AnswerPart]) -> dict[str, Any]:
        message = message_of(parts)
        calls = message.pop("tool_calls", None)
        return message if calls is None else message | {"function_call": calls[0]["function"]}
