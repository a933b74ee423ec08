# SPDX-License-Identifier: Apache-2.0
"""Concurrent streams, each token with its time of arrival."""

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from served import Served


@dataclass
class ReadChoice:
    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[Any] = field(default_factory=list)


@dataclass
class ToldEvents:
    """Content of a stream: choices, usage, an error if it ended with one."""

    choices: dict[int, ReadChoice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    done: bool = False
    times: list[float] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(len(choice.ids) for choice in self.choices.values())

    @property
    def longest_gap(self) -> float:
        """Longest time in seconds between events that brought tokens."""
        return max((after - before for before, after in zip(self.times, self.times[1:], strict=False)), default=0.0)

    @property
    def answer(self) -> tuple[Any, ...]:
        """The content that must not depend on faults."""
        return self.choices, self.usage, self.error, self.done

    def take(self, event: str) -> None:
        if event == "[DONE]":
            self.done = True
            return
        data = json.loads(event)
        self.error = data.get("error", self.error)
        self.usage = data.get("usage") or self.usage
        for piece in data.get("choices", ()):
            self.add(piece)

    def add(self, piece: dict[str, Any]) -> None:
        assert not self.done, "[DONE] is last"
        choice = self.choices.setdefault(piece["index"], ReadChoice())
        choice.ids += piece.get("token_ids") or []
        choice.text += piece.get("text") or (piece.get("delta") or {}).get("content") or ""
        choice.logprobs += (piece.get("logprobs") or {}).get("token_logprobs", [])
        choice.top_logprobs += (piece.get("logprobs") or {}).get("top_logprobs", [])
        choice.finish = piece["finish_reason"] or choice.finish
        if piece.get("token_ids"):
            self.times.append(time.monotonic())


class Streams:
    """Concurrent completions, and chats where a body has messages. `finish` waits for the end of each."""

    def __init__(self, served: Served, bodies: list[dict[str, Any]]) -> None:
        self.told = [ToldEvents() for _ in bodies]
        self.threads = ThreadPoolExecutor(len(bodies))
        self.ends: list[Future[None]] = [
            self.threads.submit(self.read, served, body, told) for body, told in zip(bodies, self.told, strict=True)
        ]

    def read(self, served: Served, body: dict[str, Any], told: ToldEvents) -> None:
        asked = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True} | body
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        reply = served.request("POST", path, asked)
        assert reply.status == 200, reply.text()
        for event in reply.events():
            told.take(event)

    def all_have(self, tokens: int) -> bool:
        """Return whether each stream has so many tokens, or all that it gets: a model may close an object early."""
        for end in self.ends:
            assert not end.done() or end.exception() is None, end.exception()
        return all(told.tokens >= tokens or told.done for told in self.told)

    def finish(self) -> list[ToldEvents]:
        for end in self.ends:
            end.result(300)
        self.threads.shutdown()
        return self.told
