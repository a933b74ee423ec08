# SPDX-License-Identifier: Apache-2.0
"""A conversation in the terminal with a running server; answers are streamed."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pontil.launcher.commands.terminal.status_table import plain
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.foundation.server_client import connect, reason


@dataclass(slots=True)
class ChatAnswer:
    """One answer, as it came. `first` and `last` are the seconds from the question to the first and the last piece."""

    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    route: str = ""
    first: float = 0.0
    last: float = 0.0

    @property
    def shown(self) -> dict[str, Any]:
        """The answer as JSON for programs. Times are in seconds from the question, None where nothing was said."""
        times = {"first_token_seconds": self.first or None, "seconds": self.last or None}
        rounded_times = {name: None if time is None else round(time, 4) for name, time in times.items()}
        return {"answer": self.text, "usage": self.usage, "route": self.route, **rounded_times}

    @property
    def figures(self) -> str:
        """The counts by the server, the speed seen here, and the workers that served."""
        details = self.usage.get("prompt_tokens_details") or {}
        generated_tokens = self.usage.get("completion_tokens") or 0
        parts = [f"{self.usage.get('prompt_tokens')} prompt tokens"]
        if cached_tokens := details.get("cached_tokens"):
            parts.append(f"{cached_tokens} cached")
        parts.append(f"{generated_tokens} generated")
        if generated_tokens > 1 and self.last > self.first:
            parts.append(
                f"{(generated_tokens - 1) / (self.last - self.first):.1f} tokens/s, first after {self.first:.2f} s"
            )
        return ", ".join([*parts, *([self.route] if self.route else [])])


@dataclass(slots=True)
class ChatSession:
    """One conversation. `messages` grows by the user's and the model's turns; `params` go with every question as fields
    of the request; `key` is the authorization header."""

    url: str
    model: str
    params: dict[str, Any] = field(default_factory=dict)
    key: dict[str, str] = field(default_factory=dict, repr=False)
    system: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)

    def say(self, text: str, show: Callable[[str], None]) -> ChatAnswer:
        """Send one turn and show the answer as it streams, including any reasoning before it. A turn that fails is
        removed again. Raises LaunchError."""
        self.messages.append({"role": "user", "content": text})
        answer, thinking, sent_at = ChatAnswer(), False, time.monotonic()
        try:
            for event in self.events(answer):
                for choice in event["choices"]:
                    thought = choice["delta"].get("reasoning_content") or ""
                    piece = choice["delta"].get("content") or ""
                    show(thought + ("\n\n" if thinking and piece else "") + piece)
                    if thought or piece:
                        answer.last = time.monotonic() - sent_at
                        answer.first = answer.first or answer.last
                    answer.text, thinking = answer.text + piece, bool(thought) or (thinking and not piece)
                answer.usage = event.get("usage") or answer.usage
        except BaseException:
            # Also on Ctrl-C: the turn is removed, and the exception goes on.
            self.messages.pop()
            raise
        self.messages.append({"role": "assistant", "content": answer.text})
        return answer

    def events(self, answer: ChatAnswer) -> Iterator[dict[str, Any]]:
        """Yield the events of the last turn's answer, whose route is noted."""
        connection = connect(self.url)
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = self.params | {
            "model": self.model,
            "messages": system + self.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            headers = {"content-type": "application/json", **self.key}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise LaunchError(reason(response.read(), response.status))
            answer.route = plain(response.headers.get("x-pontil-route", ""))
            for line in response:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise LaunchError(event["error"]["message"])
                    yield event
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LaunchError(f"the server at {self.url} did not answer ({error}): is `launch` running?") from None
        finally:
            connection.close()
