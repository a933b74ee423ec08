# SPDX-License-Identifier: Apache-2.0
"""A site of the world under a flood of requests that washes every pool many times, with a long prefix leased beside it
and every worker killed, or drained for a while, in turn: what the lease costs the flood, and whether each request
behind it finds its tokens."""

import json
import random
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import kept_memory
from clients import ClientWish
from engine_process import TinyModel
from faults import FaultMaker
from goodput import PROMPT, Trial, quiet_folder, site_of
from http_reader import HttpReader
from link_faults import SeedFault
from request_connections import AnswerTaker, Dialer, PendingAnswer
from seed_run import WHOLE_WITHIN
from site_plan import CALLERS
from virtual_time import SeededWorld

# The longest request of the site, the pool of each worker, and how many of the flood are asked at once.
CONTEXT, BLOCKS, CROWD = 12_288, 4096, 150
# Tokens of an answer of the flood.
ANSWER = 8
# Seconds between two requests behind the lease, and the most that all of it may last.
EACH, LASTS = 5.0, 20_000.0
# Seconds after which a drained worker is asked back, and the draw of the longest time that a drain may take.
DRAINED_FOR, LONG_DRAIN = 4.0, 0.9
PATH, OWN, HOLDS_FOR = "/v1/prefixes", 250, 86_400


@dataclass(frozen=True, slots=True)
class FloodOutcome:
    """The outcome of a flood: its requests that were `answered` within so many `seconds`, the `kills` or drains, and of
    the requests behind the lease how many found all of its tokens (`hits`), how many asked while it was `moving` from a
    dead process to its successor, and what the others found. Of the lease its tokens, its last `state` with the reason,
    and its byte-seconds."""

    answered: int
    seconds: float
    kills: int
    hits: int
    moving: int
    missed: list[int]
    tokens: int
    state: str
    reason: str | None
    byte_seconds: dict[str, int]
    violations: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FaultTurns:
    """The kind of the fault that befalls every worker in turn, or None; and when the first one is, in parts of the
    flood of which there is one more than workers."""

    befalls: str | None = "kill"
    first: float = 1.0


class LeaseHolder(AnswerTaker):
    """The client of one lease: it has the prefix kept, and asks behind it again and again until the flood is over. It
    looks at the lease before and after each request: what it asks while the lease moves is counted apart."""

    def __init__(self, world: SeededWorld, dialer: Dialer, length: int) -> None:
        self.world, self.dialer = world, dialer
        chance = random.Random(length)
        self.prompt = [OWN, *(chance.randrange(3, 200) for _ in range(length - 1))]
        self.lease: dict[str, Any] = {}
        self.hits, self.moving, self.found = 0, 0, 0
        self.missed: list[int] = []
        self.number = 0
        self.was_held = self.is_over = self.is_done = False
        self.then = self.kept
        self.pending: PendingAnswer | None = None

    def begin(self) -> None:
        self.ask("POST", PATH, self.kept, {"prompt": self.prompt, "ttl": HOLDS_FOR})

    def kept(self, reader: HttpReader) -> None:
        assert reader.status == 200, bytes(reader.body)
        self.lease = json.loads(reader.body)
        self.world.after(EACH, self.look)

    def look(self) -> None:
        self.ask("GET", f"{PATH}/{self.lease['id']}", self.looked)

    def looked(self, reader: HttpReader) -> None:
        self.lease = json.loads(reader.body)
        self.was_held = self.lease["state"] == "held"
        if self.lease["state"] not in ("held", "moving") or self.is_over:
            self.is_done = True
            return
        self.number += 1
        prompt = [*self.prompt, 3 + self.number % 200, 3 + self.number // 200]
        self.ask("POST", "/v1/completions", self.used, {"prompt": prompt, "max_tokens": 1, "seed": 1})

    def used(self, reader: HttpReader) -> None:
        assert reader.status == 200, bytes(reader.body)
        self.found = json.loads(reader.body)["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.ask("GET", f"{PATH}/{self.lease['id']}", self.judge)

    def judge(self, reader: HttpReader) -> None:
        self.lease = json.loads(reader.body)
        if self.found >= self.lease["tokens"]:
            self.hits += 1
        elif self.was_held and self.lease["state"] == "held":
            self.missed.append(self.found)
        else:
            self.moving += 1
        self.world.after(EACH, self.look)

    def ask(self, method: str, path: str, then: Any, body: Any = None) -> None:
        self.then = then
        connection = self.dialer.dial(6000)
        assert connection is not None, "the proxy is there all the time"
        data = b"" if body is None else json.dumps(body).encode()
        lines = f"host: localhost\r\nauthorization: Bearer {CALLERS['cleo']}\r\n"
        lines += f"content-length: {len(data)}\r\ncontent-type: application/json\r\n\r\n"
        self.pending = connection.ask(self, f"{method} {path} HTTP/1.1\r\n{lines}".encode() + data)

    # The parts of an AnswerTaker.

    def disconnected(self) -> None:
        raise AssertionError("nobody cuts this connection")

    def answered(self, reader: HttpReader) -> None:
        self.then(reader)


class LeaseFlood(Trial):
    """A flood of so many requests, CROWD of them at a time, with a lease on so many tokens or none. Something `befalls`
    every worker in turn, each when as large a part of the flood was answered; the first one after so much of such a
    part."""

    def __init__(
        self, ratio: str, model: TinyModel, folder: Path, requests: int, lease: int, turns: FaultTurns
    ) -> None:
        plan = replace(site_of(ratio), blocks=BLOCKS, kept_kv=1)
        super().__init__(plan, replace(model, config=replace(model.config, max_model_len=CONTEXT)), folder, requests, 1)
        self.holder = LeaseHolder(self.world, Dialer(self.world, self.find_proxy), lease) if lease else None
        self.faults = FaultMaker(self.world, self.site)
        self.turns = turns
        self.kills = plan.worker_names if turns.befalls else []
        self.killed = 0
        self.next = 0

    def wish(self, number: int) -> ClientWish:
        prompt = [self.chance.randrange(3, 200) for _ in range(PROMPT)]
        return ClientWish(number, CALLERS["ann"], prompt, self.chance.getrandbits(31), ANSWER)

    def ended(self, call: Any) -> None:
        super().ended(call)
        answered = len(self.calls) - self.waiting
        part = len(self.calls) / (len(self.kills) + 1)
        if self.killed < len(self.kills) and answered >= part * (self.killed + self.turns.first):
            self.killed += 1
            fault = SeedFault(0.0, str(self.turns.befalls), self.kills[self.killed - 1], DRAINED_FOR, LONG_DRAIN)
            self.faults.plan([fault], self.world.now())
        self.one_more()

    def one_more(self) -> None:
        if self.next < len(self.calls):
            self.next += 1
            self.calls[self.next - 1].begin()

    def flood(self) -> FloodOutcome:
        world = self.world
        self.site.begin()
        until = world.time + WHOLE_WITHIN
        world.run(lambda: self.site.is_whole or world.time > until)
        if self.holder is not None:
            self.holder.begin()
            world.run(lambda: bool(self.holder and self.holder.lease) or world.time > until + LASTS)
        begin = world.now()
        for _ in range(CROWD):
            self.one_more()
        world.run(lambda: not self.waiting or world.time > begin + LASTS)
        seconds = world.now() - begin
        if self.holder is not None:
            self.holder.is_over = True
            world.run(lambda: bool(self.holder and self.holder.is_done) or world.time > begin + LASTS)
        return self.outcome(seconds)

    def outcome(self, seconds: float) -> FloodOutcome:
        done = sum(call.outcome == "done" for call in self.calls)
        violations = [*self.world.violations]
        if done < len(self.calls):
            violations.append(f"{len(self.calls) - done} requests of the flood were not answered")
        if self.holder is None:
            return FloodOutcome(done, seconds, self.killed, 0, 0, [], 0, "", None, {}, violations)
        holder, lease = self.holder, self.holder.lease
        hits = holder.hits, holder.moving, holder.missed
        told = lease["tokens"], lease["state"], lease["reason"], lease["byte_seconds"]
        return FloodOutcome(done, seconds, self.killed, *hits, *told, violations)


def flooded(ratio: str, model: TinyModel, requests: int, lease: int, turns: FaultTurns) -> FloodOutcome:
    """Run one flood. Nothing but the deaths befalls the memory that outlives them: seeds have damage, which is
    refunded."""
    untyped: Any = kept_memory
    untyped.CHANGED = 0.0
    with quiet_folder() as folder:
        return LeaseFlood(ratio, model, folder, requests, lease, turns).flood()


def figures(ratio: str, found: FloodOutcome) -> dict[str, Any]:
    """Return what is told of a flood."""
    rate = round(found.answered / found.seconds, 3)
    told = {name: value for name, value in asdict(found).items() if name not in ("violations", "byte_seconds")}
    return {"ratio": ratio, "requests_per_second": rate} | told | {"seconds": round(found.seconds, 1)}
