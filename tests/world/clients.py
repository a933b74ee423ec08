# SPDX-License-Identifier: Apache-2.0
"""Clients: each asks for one answer by HTTP until it has it, or leaves before that."""

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from answer_forms import COMPLETION, PATHS, RESPONSE, Message, body_of, take_event, take_whole
from connection_buffers import Pace
from http_reader import HttpReader
from request_connections import Dialer, PendingAnswer, RequestConnection
from site_plan import SHORT_WINDOW
from virtual_time import SeededWorld

from pontil.runtime.tokenizer.pair_encoder import TextPair

# Seconds until a client that was refused, or lost its proxy, asks again: so long, and up to twice that.
AGAIN, LONGEST_PAUSE = 0.25, 2.0
# Seconds after which a request that has not come whole is refused.
RECEIVED_WITHIN = 60.0
# Seconds in which a try must have an outcome.
PATIENCE = 60.0
MOST_TRIES = 60
# Seconds after its window in which a stream that nobody continued ends.
GONE_AFTER = 1.0
# The chance at each piece of a stream that its client breaks it off, and the seconds until it goes on.
BREAKS, BREAK_PAUSES = 0.05, (0.0, 0.05, 0.5)
# Where a window is waited for: the chance that the client comes back about its end, and the seconds from there.
LATE, LATE_BY = 0.15, (-0.5, 0.0, 0.4, 5.0)


@dataclass(frozen=True, slots=True)
class VectorWish:
    """The tokens of the texts that are to be embedded, the length of their vectors (None: the model's own), and the
    `fields` that ask for it."""

    texts: tuple[tuple[int, ...], ...]
    dimensions: int | None
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PairWish:
    """The pairs of texts that are to be scored, how many of the best ones are wanted (None: all), and the `fields` that
    ask for it."""

    pairs: tuple[TextPair, ...]
    best: int | None
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SoundWish:
    """A wish for sound from so many stages of a graph, as a WAV file or as bare samples. A text that is read out has no
    events of a stream, and may stream its samples themselves."""

    graph: str
    stages: int
    voice: str | None
    in_wav: bool
    streams: bool = False


@dataclass(frozen=True, slots=True)
class ClientWish:
    """One request: what is asked for, with which key. `leaves` is after how many seconds the client goes away, `reads`
    and `sends` the pace of its first try. One that `breaks` its stream hangs up at some event of it, and goes on over
    another connection; one that `shares` a connection sends over that of its key, and one that `shuts` ends its own way
    after the request of its first try. The prompt of another `form` than a completion is that of `messages`; a response
    may go on after a `previous` one, which was asked for at `previous_began`, and has `turns` of its client come after
    it. One for `vectors` or `scores` has no choices, and the tokens of all of its texts as its prompt."""

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
    reads: Pace | None = None
    sends: Pace | None = None
    shares: bool = False
    shuts: bool = False
    form: str = COMPLETION
    messages: tuple[Message, ...] = ()
    previous: str | None = None
    previous_began: float = 0.0
    turns: tuple[str, ...] = ()
    vectors: VectorWish | None = None
    scores: PairWish | None = None
    sound: SoundWish | None = None

    @property
    def rows(self) -> int:
        """The rows that the usage log has of it."""
        if self.sound is not None:
            return self.sound.stages
        if self.scores is not None:
            return len(self.scores.pairs)
        return 1 if self.vectors is None else len(self.vectors.texts)


@dataclass(slots=True)
class ClientTry:
    """One try of a client, by its X-Request-Id. `ended` is how: complete, refused, lost, gone, left, late, broken."""

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
    # The last time that its client broke it off, and that it came back.
    left_at: float | None = None
    back_at: float | None = None
    # Seconds after which it was asked to come again, and why; the time at which its answer began.
    retry_after: float | None = None
    served_at: float | None = None
    reason: str = ""
    # The name of the answer, whether it is kept, the kinds of what came of it, and what is odd about them.
    answer: str | None = None
    kept: bool = False
    events: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    vectors: "list[array[float]]" = field(default_factory=list)
    # The places of pairs, with their scores.
    scores: list[tuple[int, float]] = field(default_factory=list)
    # The bytes of its sound, and the tokens of sound as its usage says.
    sound: bytearray = field(default_factory=bytearray)
    frames: int = 0

    @property
    def billed(self) -> int:
        """The tokens that came, and those of sound."""
        return self.delivered + self.frames

    @property
    def delivered(self) -> int:
        """The tokens that came. A response shows text alone, and counts them at its end."""
        return sum(map(len, self.ids)) or (self.usage or {}).get("completion_tokens", 0)

    @staticmethod
    def begin(name: str, now: float, proxy: str, choices: int) -> "ClientTry":
        return ClientTry(name, now, proxy, [[] for _ in range(choices)], [""] * choices, [None] * choices)


class ClientCall:
    """The client of one wish. `ended` hears of the outcome. `began` is since when it waits for the service alone,
    `rest` the beginning of an event that is not whole."""

    def __init__(
        self, world: SeededWorld, wish: ClientWish, dialer: Dialer, ended: "Callable[[ClientCall], None]", window: float
    ) -> None:
        self.world, self.wish, self.dialer, self.ended, self.window = world, wish, dialer, ended, window
        self.chance = world.random(f"client/{wish.number}")
        self.tries: list[ClientTry] = []
        self.pending: PendingAnswer | None = None
        self.rest = b""
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
        connection = self.dial()
        if connection is None:
            self.pause(self.ask)
            return
        if len(self.tries) == MOST_TRIES:
            self.end("failed")
            return
        name = f"c{self.wish.number}-{len(self.tries)}"
        self.tries.append(ClientTry.begin(name, self.world.now(), connection.process.name, self.wish.choices))
        headers = {"x-request-id": name} | ({"pontil-resume": "1"} if self.wish.resumable else {})
        self.send(connection, headers, body_of(self.wish))
        if self.wish.shuts and len(self.tries) == 1:
            connection.made.shut()

    def go_on(self) -> None:
        """Ask for the rest of a stream that broke off."""
        if self.outcome is not None:
            return
        connection = self.dial()
        if connection is None:
            self.pause(self.go_on)
            return
        one = self.last
        one.continued += 1
        one.back_at = self.world.now()
        self.send(connection, {"last-event-id": one.event or str(one.stream)}, b"")

    def dial(self) -> RequestConnection | None:
        pace = self.wish.reads if not self.tries else None
        return self.dialer.dial(self.wish.number, pace, self.wish.key if self.wish.shares else None)

    def send(self, connection: RequestConnection, headers: dict[str, str], body: bytes) -> None:
        lines = {
            "host": "localhost", "authorization": f"Bearer {self.wish.key}", "content-type": "application/json",
            "content-length": str(len(body)), **headers,
        }  # fmt: skip
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        request = f"POST {PATHS[self.wish.form]} HTTP/1.1\r\n{head}\r\n".encode() + body
        self.pending, self.rest = connection.ask(self, request, self.wish.sends if len(self.tries) == 1 else None), b""
        self.watch(self.pending)

    def pause(self, work: Callable[[], None], seconds: float = AGAIN) -> None:
        self.world.after(min(seconds, LONGEST_PAUSE) * (1 + self.chance.random()), work)

    def watch(self, waited: PendingAnswer) -> None:
        since = self.began
        self.world.after(PATIENCE, lambda: self.late(waited, since))

    def late(self, waited: PendingAnswer, since: float) -> None:
        """Ask anew after so long a wait for the service alone."""
        if self.pending is not waited or self.outcome is not None:
            return
        if self.began > since:
            self.watch(waited)
        else:
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
        if self.pending is not None:
            pending, self.pending = self.pending, None
            pending.connection.leave(pending)

    def break_off(self) -> None:
        """Hang up in the middle of a stream, and go on with it soon."""
        self.hang_up()
        self.last.left_at = self.world.now()
        pause, late = self.chance.choice(BREAK_PAUSES), self.world.random(f"late/{self.wish.number}")
        if self.window > SHORT_WINDOW or late.random() >= LATE:
            self.pause(self.go_on, pause)
        else:
            seconds = self.window + late.choice(LATE_BY)
            self.began = self.world.now() + seconds
            self.world.after(seconds, self.go_on)

    def finish_try(self, how: str) -> None:
        if self.last.ended is None:
            self.last.ended, self.last.ended_at = how, self.world.now()
            self.world.note("try", self.last.name, how, self.last.status, self.last.delivered)

    def end(self, outcome: str) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.over()

    def over(self) -> None:
        self.ended_at = self.world.now()
        self.ended(self)

    # The parts of an AnswerTaker.

    def held_up(self, seconds: float) -> None:
        self.began = self.world.now() + seconds

    def received(self, new: bytes) -> None:
        assert self.pending is not None
        reader = self.pending.reader
        if reader.status == 200:
            self.last.served_at = self.last.served_at or self.world.now()
        if reader.status == 200 and self.wish.stream:
            self.last.stream = reader.headers.get("x-pontil-stream", self.last.stream)
            *events, self.rest = (self.rest + new).split(b"\n\n")
            self.take_events(events)
            if events and self.wish.breaks and self.chance.random() < BREAKS:
                self.break_off()

    def answered(self, reader: HttpReader) -> None:
        """Act on a whole response."""
        self.pending = None
        self.last.status = reader.status
        if reader.status == 200:
            if not self.wish.stream:
                take_whole(self.last, self.wish.form, bytes(reader.body))
            if self.last.usage is not None and None not in self.last.finishes:
                self.finish_try("complete")
                self.end("done")
            else:
                self.finish_try("broken")
                self.pause(self.ask)
        elif reader.status in (429, 503):
            self.last.retry_after = float(reader.headers.get("retry-after", 0))
            self.last.reason = json.loads(reader.body)["error"]["message"]
            if reader.status == 429 and not self.last.continued:
                self.wait_for_limit(self.last.retry_after)
            else:
                self.refused(self.last.retry_after)
        elif reader.status == 408 and self.is_too_slow:
            self.refused(0.0)
        elif self.last.continued and reader.status == 409:
            # Somebody else with this key reads it, who has heard of its id.
            self.refused(0.0)
        elif self.last.continued and b"stream_not_found" in reader.body:
            self.finish_try("gone")
            self.ask()
        elif b"previous_response_not_found" in reader.body and self.is_forgotten:
            self.finish_try("gone")
            self.wish = replace(self.wish, previous=None)
            self.ask()
        else:
            self.world.violate(f"every_outcome_is_defined: {self.last.name} got {reader.status} {reader.body[:200]!r}")
            self.end("failed")

    @property
    def is_too_slow(self) -> bool:
        """Return whether it is so slow to send its request that this may be refused."""
        return self.wish.sends is not None and self.world.now() - self.last.began >= RECEIVED_WITHIN

    @property
    def is_forgotten(self) -> bool:
        """Return whether a power cut may have taken the response after which it goes on."""
        lost_at = self.world.disks.lost_at
        return self.wish.previous is not None and lost_at is not None and lost_at >= self.wish.previous_began

    def wait_for_limit(self, seconds: float) -> None:
        """Ask again when the limit of its key is said to allow it."""
        self.finish_try("refused")
        self.began = self.world.now() + seconds
        self.world.after(seconds, self.ask)

    def refused(self, seconds: float) -> None:
        if self.last.continued:
            self.pause(self.go_on, max(AGAIN, seconds))
        else:
            self.finish_try("refused")
            self.pause(self.ask, max(AGAIN, seconds))

    def disconnected(self) -> None:
        """Go on after the connection has ended in the middle of a response."""
        self.pending = None
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
                    if "error" not in told or self.wish.form == RESPONSE:
                        take_event(self.last, self.wish.form, told)
                elif line == "data: [DONE]":
                    self.last.events.append("done")
