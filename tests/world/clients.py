# SPDX-License-Identifier: Apache-2.0
"""Clients: each asks for one answer by HTTP until it has it, or leaves before that."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from connections import ClientConnection
from http_reader import HttpReader
from served_proxy import ProxyProcess
from virtual_time import SeededWorld

PATH = "/v1/completions"
# Seconds until a client that was refused, or lost its proxy, asks again: so long, and up to twice that.
AGAIN, LONGEST_PAUSE = 0.25, 2.0
# Seconds in which a try must have an outcome.
PATIENCE = 60.0
MOST_TRIES = 60
# Seconds after its window in which a stream that nobody continued ends.
GONE_AFTER = 1.0
# The chance at each piece of a stream that its client breaks it off, and the seconds until it goes on.
BREAKS, BREAK_PAUSES = 0.05, (0.0, 0.05, 0.5)


@dataclass(frozen=True, slots=True)
class ClientWish:
    """One request: what is asked for, with which key. `leaves` is after how many seconds the client goes away; one that
    `breaks` its stream hangs up at some event of it, and goes on over another connection."""

    number: int
    key: str
    prompt: list[int]
    seed: int
    max_tokens: int
    choices: int = 1
    stream: bool = True
    resumable: bool = False
    stop: str | None = None
    priority: int = 0
    leaves: float | None = None
    breaks: bool = False

    def body(self) -> bytes:
        told: dict[str, Any] = {
            "model": "tiny", "prompt": self.prompt, "max_tokens": self.max_tokens, "seed": self.seed,
            "n": self.choices, "ignore_eos": True, "return_token_ids": True, "priority": self.priority,
        }  # fmt: skip
        if self.stream:
            told |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.stop is not None:
            told["stop"] = [self.stop]
        return json.dumps(told).encode()


@dataclass(slots=True)
class ClientTry:
    """One try of a client, by its X-Request-Id. `ended` is how: complete, refused, lost, left, late, broken."""

    name: str
    began: float
    proxy: str
    ids: list[list[int]]
    texts: list[str]
    finishes: list[str | None]
    status: int | None = None
    usage: dict[str, Any] | None = None
    stream: str | None = None
    ended: str | None = None
    ended_at: float = 0.0
    # The number of times that it was continued over another connection, and the last event's id.
    continued: int = 0
    event: str | None = None


@dataclass(slots=True)
class WaitingConnection:
    """A connection with the response that comes over it."""

    made: ClientConnection
    reader: HttpReader = field(default_factory=HttpReader)
    rest: bytes = b""


class ClientCall:
    """The client of one wish. `find` returns a proxy that takes a connection, if there is one; `ended` hears of the
    outcome."""

    def __init__(
        self, world: SeededWorld, wish: ClientWish, find: Callable[[], ProxyProcess | None],
        ended: Callable[[], None], window: float,
    ) -> None:  # fmt: skip
        self.world, self.wish, self.find, self.ended, self.window = world, wish, find, ended, window
        self.chance = world.random(f"client/{wish.number}")
        self.tries: list[ClientTry] = []
        self.connection: WaitingConnection | None = None
        self.outcome: str | None = None
        self.began = self.ended_at = 0.0

    @property
    def last(self) -> ClientTry:
        return self.tries[-1]

    def begin(self) -> None:
        self.began = self.world.now()
        if self.wish.leaves is not None:
            self.world.after(self.wish.leaves, self.leave)
        self.ask()

    def ask(self) -> None:
        """Ask anew."""
        if self.outcome is not None:
            return
        proxy = self.find()
        if proxy is None:
            self.pause(self.ask)
            return
        if len(self.tries) == MOST_TRIES:
            self.end("failed")
            return
        count = self.wish.choices
        name = f"c{self.wish.number}-{len(self.tries)}"
        self.tries.append(
            ClientTry(name, self.world.now(), proxy.name, [[] for _ in range(count)], [""] * count, [None] * count)
        )
        headers = {"x-request-id": name} | ({"pontil-resume": "1"} if self.wish.resumable else {})
        self.send(proxy, headers, self.wish.body())

    def go_on(self) -> None:
        """Ask for the rest of a stream that broke off."""
        if self.outcome is not None:
            return
        proxy = self.find()
        if proxy is None:
            self.pause(self.go_on)
            return
        one = self.last
        one.continued += 1
        self.send(proxy, {"last-event-id": one.event or str(one.stream)}, b"")

    def send(self, proxy: ProxyProcess, headers: dict[str, str], body: bytes) -> None:
        lines = {
            "host": "localhost", "authorization": f"Bearer {self.wish.key}", "content-type": "application/json",
            "content-length": str(len(body)), **headers,
        }  # fmt: skip
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        made = ClientConnection(self.world, proxy, self, self.wish.number)
        self.connection = mine = WaitingConnection(made)
        made.send(f"POST {PATH} HTTP/1.1\r\n{head}\r\n".encode() + body)
        self.world.after(PATIENCE, lambda: self.late(mine))

    def pause(self, work: Callable[[], None], seconds: float = AGAIN) -> None:
        self.world.after(min(seconds, LONGEST_PAUSE) * (1 + self.chance.random()), work)

    def late(self, waited: WaitingConnection) -> None:
        if self.connection is waited and self.outcome is None:
            self.hang_up()
            self.finish_try("late")
            self.ask()

    def leave(self) -> None:
        if self.outcome is None:
            self.hang_up()
            if self.tries:
                self.finish_try("left")
            # A stream that could be continued goes on until then.
            self.outcome = "left"
            self.world.after(self.window + GONE_AFTER if self.wish.resumable else 0.0, self.over)

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.made.leave()
            self.connection = None

    def break_off(self) -> None:
        """Hang up in the middle of a stream, and go on with it soon."""
        self.hang_up()
        self.pause(self.go_on, self.chance.choice(BREAK_PAUSES))

    def finish_try(self, how: str) -> None:
        if self.last.ended is None:
            self.last.ended, self.last.ended_at = how, self.world.now()
            self.world.note("try", self.last.name, how, self.last.status, sum(map(len, self.last.ids)))

    def end(self, outcome: str) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.over()

    def over(self) -> None:
        self.ended_at = self.world.now()
        self.ended()

    # The parts that a connection calls.

    def received(self, data: bytes) -> None:
        waited = self.connection
        if waited is None:
            return
        new = waited.reader.feed(data)
        status = waited.reader.status
        if status is None:
            return
        if status == 200 and self.wish.stream:
            self.last.stream = waited.reader.headers.get("x-pontil-stream", self.last.stream)
            *events, waited.rest = (waited.rest + new).split(b"\n\n")
            self.take_events(events)
            if events and self.wish.breaks and self.chance.random() < BREAKS:
                self.break_off()
        if waited.reader.complete and self.connection is waited:
            self.hang_up()
            self.answered(waited.reader)

    def answered(self, reader: HttpReader) -> None:
        """Act on a whole response."""
        self.last.status = reader.status
        if reader.status == 200:
            if not self.wish.stream:
                self.take_reply(json.loads(reader.body))
            if self.last.usage is not None and None not in self.last.finishes:
                self.finish_try("complete")
                self.end("done")
            else:
                self.finish_try("broken")
                self.pause(self.ask)
        elif reader.status in (429, 503):
            self.refused(float(reader.headers.get("retry-after", 0)))
        elif self.last.continued and b"stream_not_found" in reader.body:
            self.finish_try("lost")
            self.ask()
        else:
            self.world.violate(f"every_outcome_is_defined: {self.last.name} got {reader.status} {reader.body[:200]!r}")
            self.end("failed")

    def refused(self, seconds: float) -> None:
        if self.last.continued:
            self.pause(self.go_on, max(AGAIN, seconds))
        else:
            self.finish_try("refused")
            self.pause(self.ask, max(AGAIN, seconds))

    def disconnected(self) -> None:
        """Go on after the connection has ended in the middle of a response."""
        self.connection = None
        if self.outcome is not None:
            return
        if self.last.stream is not None and self.wish.resumable:
            self.pause(self.go_on)
        else:
            self.finish_try("lost")
            self.pause(self.ask)

    def take_events(self, events: Sequence[bytes]) -> None:
        for event in events:
            for line in event.decode().split("\n"):
                if line.startswith("id: "):
                    self.last.event = line[4:]
                elif line.startswith("data: {"):
                    told = json.loads(line[6:])
                    if "error" in told:
                        self.world.note("error", self.last.name, told["error"].get("message"))
                    else:
                        self.take_reply(told)

    def take_reply(self, told: dict[str, Any]) -> None:
        """Take a whole reply, or a chunk of one."""
        one = self.last
        for choice in told["choices"]:
            index = choice["index"]
            one.ids[index] += choice.get("token_ids") or []
            one.texts[index] += choice.get("text") or ""
            one.finishes[index] = choice.get("finish_reason") or one.finishes[index]
        if told.get("usage"):
            one.usage = told["usage"]
