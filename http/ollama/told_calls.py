# SPDX-License-Identifier: Apache-2.0
"""Calls of tools as Ollama tells them: each whole, since its clients run what they get."""

from typing import Any

from pontil.http.schema.json_body import parse
from pontil.runtime.chat.answer_part import Arguments, Call
from pontil.runtime.errors import RequestError


class ToldCalls:
    """The calls of one answer. `token` makes their ids. A call that was cut is not told."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.open: Call | None = None
        self.pieces: list[str] = []
        self.told: list[dict[str, Any]] = []

    def add(self, part: Call | Arguments) -> None:
        if isinstance(part, Call):
            self.open, self.pieces = part, []
        else:
            self.pieces.append(part.text)

    def close(self) -> list[dict[str, Any]]:
        """End the call that is open, and return it if there is one and it is whole."""
        call, self.open = self.open, None
        arguments = None if call is None else whole_arguments("".join(self.pieces))
        if call is None or arguments is None:
            return []
        identity = call.identity or f"call_{self.token}{len(self.told):02x}"
        self.told.append({"id": identity, "function": {"name": call.name, "arguments": arguments}})
        return self.told[-1:]


def whole_arguments(text: str) -> dict[str, Any] | None:
    """Return the arguments, None if they are not whole."""
    try:
        value = parse(text.encode())
    except (ValueError, RecursionError, RequestError):
        return None
    return value if isinstance(value, dict) else None
