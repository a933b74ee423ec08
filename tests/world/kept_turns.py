# SPDX-License-Identifier: Apache-2.0
"""Clients of chats whose prompts are to be leased beside the answer: each complete answer says whether that is so, and
a lease that none has named is held by nobody in the end. A seed has as many as its plan says."""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from http_reader import HttpReader
from lease_clients import KEY, LOOK, NAME, PATH
from request_connections import AnswerTaker, Dialer, PendingAnswer
from virtual_time import SeededWorld

from pontil.runtime.proxy.leases.fleet_leases import BESIDE
from pontil.runtime.proxy.requests.lease_wish import HEADER, REFUSED_HEADER

if TYPE_CHECKING:
    from seed_run import SeedRun

CHATS, WORDS, TOKENS = "/v1/chat/completions", (8, 40), (2, 5)
# Tries of an answer, and of the release of a lease: another proxy may not have heard of it yet.
MOST_TRIES = 12


class KeptTurn(AnswerTaker):
    """The client of one chat. The answer's head `named` a lease, which it releases. What `was_lost` may be a lease
    too: an answer that did not come may have named one, and a release may have reached nobody."""

    def __init__(self, world: SeededWorld, dialer: Dialer, number: int, ended: Callable[[], None]) -> None:
        self.world, self.dialer, self.number, self.ended = world, dialer, number, ended
        chance = world.random(f"kept/{number}")
        content = " ".join(f"word{chance.randrange(99)}" for _ in range(chance.randrange(*WORDS)))
        self.fields = {
            "messages": [{"role": "user", "content": f"{number} {content}"}],
            "max_tokens": chance.randrange(*TOKENS),
            "stream": chance.random() < 0.5,
            "prompt_cache_retention": "24h",
            "ignore_eos": True,
        }
        self.named: str | None = None
        self.tries, self.was_lost = 0, False
        self.pending: PendingAnswer | None = None

    def begin(self) -> None:
        self.ask("POST", CHATS, json.dumps(self.fields).encode())

    def ask(self, method: str, path: str, data: bytes = b"") -> None:
        self.tries += 1
        connection = self.dialer.dial(9000 + self.number)
        if connection is None:
            self.disconnected()
            return
        lines = f"host: localhost\r\nauthorization: Bearer {KEY}\r\nx-request-id: {NAME}kept-{self.number}-{self.tries}"
        lines += f"\r\ncontent-length: {len(data)}\r\ncontent-type: application/json\r\n\r\n"
        self.pending = connection.ask(self, f"{method} {path} HTTP/1.1\r\n{lines}".encode() + data)

    def again(self) -> None:
        if self.named is None:
            self.was_lost = True
        if self.tries < MOST_TRIES:
            self.world.after(LOOK, self.begin if self.named is None else self.let_go)
        else:
            self.was_lost = True
            self.world.after(0.0, self.ended)

    def let_go(self) -> None:
        self.ask("DELETE", f"{PATH}/{self.named}")

    # The parts of an AnswerTaker.

    def disconnected(self) -> None:
        self.again()

    def answered(self, reader: HttpReader) -> None:
        if self.named is not None:
            if reader.status == 404:
                self.again()
            else:
                self.ended()
        elif reader.status == 200 and (not self.fields["stream"] or b"[DONE]" in bytes(reader.body)):
            self.took(reader)
        else:
            self.again()

    def took(self, reader: HttpReader) -> None:
        """Take a complete answer, whose head says what became of the lease."""
        self.named, self.tries = reader.headers.get(HEADER), 0
        if self.named is not None:
            self.let_go()
            return
        if REFUSED_HEADER not in reader.headers:
            self.world.violate(f"an_answer_says_if_its_prompt_is_leased: {self.number} has {reader.headers}")
        self.ended()


class KeptTurns:
    """Those of a seed."""

    def __init__(self, world: SeededWorld, dialer: Dialer, count: int, ended: Callable[[], None]) -> None:
        self.world = world
        self.clients = [KeptTurn(world, dialer, number, ended) for number in range(max(0, count))]

    def plan(self, begin: float, seconds: float, joins: Callable[[], None]) -> None:
        chance = self.world.random("kept")
        for client in self.clients:
            joins()
            self.world.at(begin + chance.random() * seconds, client.begin)


def a_lease_that_no_answer_named_is_held_by_nobody(run: "SeedRun") -> Iterator[str]:
    """Those that were named are released by now."""
    if run.kept.clients and not any(client.was_lost for client in run.kept.clients):
        for one in run.site.workers:
            if one.worker is not None:
                yield from (f"{one} holds {name}" for name in one.worker.leases.book.leases if name.startswith(BESIDE))
