# SPDX-License-Identifier: Apache-2.0
"""One request to an OpenAI-compatible server, and the times at which a stream's tokens came."""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pontil.launcher.tools.bench.questions import Question

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

Endpoint = Literal["completions", "chat"]

# The longest event that is read, in bytes, and the longest reason that is kept, in characters.
MOST_EVENT = 1 << 24
MOST_REASON = 300


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one request, in seconds; `sent` is relative to the start of the run. `gaps` are those between events
    that have a token."""

    sent: float
    ttft: float
    tpot: float
    e2e: float
    prompt_tokens: int
    tokens: int
    gaps: tuple[float, ...]


class RequestFailed(Exception):
    """A request that ended without its usage. The message is the server's, or the connection's."""


class RequestRefused(RequestFailed):
    """A request that got another status than 200. `retry_after` is the server's header, if it sent one."""

    def __init__(self, status: int, message: str, retry_after: str | None = None) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status, self.retry_after = status, retry_after


class ConnectionBroke(RequestFailed):
    """A request whose connection could not be made, or ended before its answer did."""


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """A server under load. `key` is the authorization header. Unless connections are kept, each request has its own:
    some servers close one after an answer and do not say so."""

    url: str
    model: str
    endpoint: Endpoint = "completions"
    key: Mapping[str, str] | None = None
    ignore_eos: bool = True
    keeps_connections: bool = True

    @property
    def path(self) -> str:
        return f"{self.url.rstrip('/')}/v1/{'chat/' if self.endpoint == 'chat' else ''}completions"

    def body(self, question: Question) -> dict[str, Any]:
        """The request. Greedy, so that servers with one model give answers of the same length."""
        request: dict[str, Any] = {
            "model": self.model,
            "max_tokens": question.tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            request["ignore_eos"] = True
        if self.endpoint == "chat":
            return request | {"messages": [{"role": "user", "content": question.text}]}
        return request | {"prompt": question.prompt}


async def ask(session: "ClientSession", target: BenchTarget, question: Question, began: float) -> Timing:
    """Send one request and read its stream. Raises RequestFailed."""
    sent_at = time.perf_counter()
    async with answer_to(session, target.path, target.body(question), target.key) as response:
        arrivals, usage = await read_stream(response)
    return timing(sent_at - began, [at - sent_at for at in arrivals], usage)


@asynccontextmanager
async def answer_to(
    session: "ClientSession", url: str, body: Mapping[str, Any], key: Mapping[str, str] | None = None
) -> "AsyncIterator[ClientResponse]":
    """Send one request and give its answer to read. Raises RequestRefused, ConnectionBroke, and RequestFailed for a
    silence that is too long and for what is no JSON."""
    from asyncio import TimeoutError

    from aiohttp import ClientError

    try:
        async with session.post(url, json=body, headers=dict(key or {})) as response:
            if response.status != 200:
                reason = refusal(await response.content.read(1 << 16))
                raise RequestRefused(response.status, reason, response.headers.get("retry-after"))
            yield response
    except (ClientError, OSError, ValueError) as error:
        kind = RequestFailed if isinstance(error, TimeoutError | ValueError) else ConnectionBroke
        raise kind(printable(str(error) or type(error).__name__)) from None


def timing(sent_at: float, arrivals: list[float], usage: Mapping[str, Any]) -> Timing:
    """Return the times of a request whose events came at these moments after it was sent. Raises RequestFailed."""
    tokens, prompt_tokens = usage.get("completion_tokens"), usage.get("prompt_tokens")
    if not arrivals or not isinstance(tokens, int) or not isinstance(prompt_tokens, int) or tokens < 1:
        raise RequestFailed("the stream ended without tokens or usage")
    gaps = tuple(later - earlier for earlier, later in zip(arrivals, arrivals[1:], strict=False))
    first, last = arrivals[0], arrivals[-1]
    return Timing(sent_at, first, (last - first) / max(1, tokens - 1), last, prompt_tokens, tokens, gaps)


async def read_stream(response: "ClientResponse") -> tuple[list[float], dict[str, Any]]:
    """Return the times of the events with tokens, and the usage. Raises RequestFailed for an error event."""
    arrivals: list[float] = []
    usage: dict[str, Any] = {}
    async for at, event in events(response):
        if event is None:
            continue
        if any(has_token(choice) for choice in event.get("choices") or ()):
            arrivals.append(at)
        usage = event.get("usage") or usage
    return arrivals, usage


def has_token(choice: Mapping[str, Any]) -> bool:
    """Return whether a choice brings a token: the first event of a chat brings only the role. An event without text may
    have a token that makes none yet; of completions every event counts."""
    delta = choice.get("delta")
    return delta is None or any(value for name, value in delta.items() if name != "role")


async def events(
    response: "ClientResponse", note_id: Callable[[str], None] | None = None
) -> AsyncIterator[tuple[float, dict[str, Any] | None]]:
    """Yield each event with the time at which its last bytes came, and None for [DONE]; `note_id` takes the id of the
    next one, if it has one. Raises RequestFailed, also for an error event, and ValueError."""
    buffer = b""
    async for piece in response.content.iter_any():
        at = time.perf_counter()
        *lines, buffer = (buffer + piece).split(b"\n")
        if len(buffer) > MOST_EVENT:
            raise RequestFailed(f"an event is longer than {MOST_EVENT >> 20} MiB")
        for line in lines:
            if line.startswith(b"data:"):
                yield at, event_of(line[5:].strip())
            elif note_id is not None and line.startswith(b"id:"):
                note_id(line[3:].strip().decode())


def event_of(data: bytes) -> dict[str, Any] | None:
    """Return the event, None for [DONE]. Raises RequestFailed for an error event, ValueError for no JSON."""
    if data == b"[DONE]":
        return None
    event = json.loads(data)
    if not isinstance(event, dict) or "error" in event:
        error = event.get("error") if isinstance(event, dict) else event
        raise RequestFailed(printable(str(error.get("message") if isinstance(error, dict) else error)))
    return event


def refusal(body: bytes) -> str:
    """Return the sentence of an OpenAI error object, or the beginning of anything else."""
    try:
        return printable(str(json.loads(body)["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        return printable(body.decode(errors="replace"))


def printable(text: str) -> str:
    """Return a server's text as it may stand in a terminal."""
    return "".join(char if char.isprintable() else " " for char in text[:MOST_REASON])
