# SPDX-License-Identifier: Apache-2.0
"""Requests to the server under check, and its answers as they came."""

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pontil.launcher.commands.terminal.status_table import plain
from pontil.launcher.foundation.server_client import connect

# The longest answer that is read, and the longest part of one that is shown.
MOST_BYTES, MOST_SHOWN = 1 << 24, 200


class Difference(Exception):
    """A behaviour that is not that of the API. The message says what came instead."""


class PartRefused(Exception):
    """An optional part of the API that the server refuses, properly and by name."""


def expect(condition: object, difference: str) -> None:
    """Raise Difference unless the condition holds."""
    if not condition:
        raise Difference(difference)


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """An answer: its status, its headers with lower-case names, and its body."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def shown(self) -> str:
        return plain(f"{self.status} {self.data[:MOST_SHOWN].decode(errors='replace')}")

    def json(self) -> dict[str, Any]:
        """Return the body. Raises Difference unless it is a JSON object."""
        try:
            body = json.loads(self.data)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise Difference(f"the body is no JSON object: {self.shown}")
        return body

    def good(self) -> dict[str, Any]:
        """Return the body of a request that was obeyed. Raises Difference."""
        expect(self.status == 200, f"expected status 200, not {self.shown}")
        return self.json()

    def optional(self) -> dict[str, Any]:
        """Return the body; an optional part may be refused in the API's way. Raises PartRefused, Difference."""
        if self.status in (400, 404, 422, 501):
            raise PartRefused(plain(self.error()["message"])[:MOST_SHOWN])
        return self.good()

    def error(self) -> dict[str, Any]:
        """Return the error object. Raises Difference unless it is OpenAI's."""
        error = self.json().get("error")
        expect(isinstance(error, dict), f"there is no error object: {self.shown}")
        assert isinstance(error, dict)
        expect(isinstance(error.get("message"), str) and error["message"], f"the error has no message: {self.shown}")
        expect({"type", "param", "code"} <= set(error), f"the error lacks type, param or code: {self.shown}")
        return error


@dataclass(slots=True)
class ApiStream:
    """The events of a stream. `done` tells whether [DONE] was the last of them."""

    content_type: str
    events: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for event in self.events for choice in event.get("choices") or ()]

    @property
    def text(self) -> str:
        """The text of a completion's first choice, or the content of a chat's."""
        first_choices = [choice for choice in self.choices if not choice.get("index")]
        return "".join(
            (choice["delta"].get("content") if "delta" in choice else choice.get("text")) or ""
            for choice in first_choices
        )


@dataclass(slots=True)
class Api:
    """The server under check. `key` is the authorization header."""

    url: str
    model: str
    key: Mapping[str, str] = field(repr=False)
    timeout: float = 120.0

    def connection(self) -> http.client.HTTPConnection:
        return connect(self.url, self.timeout)

    def send(self, method: str, path: str, data: bytes | None = None) -> ApiAnswer:
        """Send one request. Raises Difference if there is no answer in HTTP."""
        connection = self.connection()
        try:
            return exchange(connection, method, path, data, self.key)
        finally:
            connection.close()

    def get(self, path: str) -> ApiAnswer:
        return self.send("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> ApiAnswer:
        return self.send("POST", path, json.dumps({"model": self.model, **body}).encode())

    def complete(self, **body: Any) -> ApiAnswer:
        """Ask for a completion: greedy and short unless the body differs."""
        return self.post("/v1/completions", {"prompt": "One, two, three,", "temperature": 0, "max_tokens": 8} | body)

    def chat(self, **body: Any) -> ApiAnswer:
        """Ask for an answer of a chat: greedy and short unless the body differs."""
        defaults = {"messages": [{"role": "user", "content": "Count to ten."}], "temperature": 0, "max_tokens": 8}
        return self.post("/v1/chat/completions", defaults | body)

    def stream_chat(self, **body: Any) -> ApiStream:
        return read_stream(self.chat(stream=True, **body))

    def stream_completion(self, **body: Any) -> ApiStream:
        return read_stream(self.complete(stream=True, **body))

    def leave(self) -> None:
        """Begin a stream and leave before its end."""
        connection = self.connection()
        body = {"model": self.model, "prompt": "Once", "max_tokens": 200, "stream": True}
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), headers(self.key))
            connection.getresponse().read(1)
            if connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)
        except (OSError, http.client.HTTPException) as error:
            raise Difference(f"the stream did not begin: {error}") from None
        finally:
            connection.close()


def headers(key: Mapping[str, str]) -> dict[str, str]:
    return {"content-type": "application/json", **key}


def exchange(
    connection: http.client.HTTPConnection, method: str, path: str, data: bytes | None, key: Mapping[str, str]
) -> ApiAnswer:
    """Send one request on a connection, which may be used again. Raises Difference."""
    try:
        connection.request(method, path, data, headers(key))
        response = connection.getresponse()
        body = response.read(MOST_BYTES)
        response.read()
    except (OSError, http.client.HTTPException) as error:
        raise Difference(f"no answer: {error or type(error).__name__}") from None
    return ApiAnswer(response.status, {name.lower(): value for name, value in response.headers.items()}, body)


def read_stream(answer: ApiAnswer) -> ApiStream:
    """Return the events of an answer. Raises Difference if it is no stream of server-sent events."""
    expect(answer.status == 200, f"expected status 200, not {answer.shown}")
    stream = ApiStream(answer.headers.get("content-type", ""))
    for line in answer.data.decode(errors="replace").split("\n"):
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        expect(not stream.done, "events follow [DONE]")
        if data == "[DONE]":
            stream.done = True
            continue
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        expect(isinstance(event, dict), f"an event is no JSON object: {plain(data)[:MOST_SHOWN]}")
        expect("error" not in event, f"an error event: {plain(data)[:MOST_SHOWN]}")
        stream.events.append(event)
    return stream
