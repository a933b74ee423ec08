# SPDX-License-Identifier: Apache-2.0
"""One run of a load on one server: closed loops of streams, or requests at random moments."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pontil.launcher.tools.bench.questions import Question
from pontil.launcher.tools.bench.stream_client import BenchTarget, RequestFailed, Timing, ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import ClientSession

CONNECT_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop of `concurrency` streams, each of which sends its next request when its last has ended, or an open
    loop of `request_rate` requests a second at the moments of a Poisson process, regardless of running requests."""

    concurrency: int | None = None
    request_rate: float | None = None

    @property
    def name(self) -> str:
        return f"{self.concurrency} streams" if self.request_rate is None else f"{self.request_rate:g} requests/s"

    @property
    def fields(self) -> dict[str, float]:
        if self.request_rate is not None:
            return {"request_rate": self.request_rate}
        return {"concurrency": self.concurrency or 1}


@dataclass(slots=True)
class Outcomes:
    """The ends of a run's requests, and the seconds from its first to its last moment."""

    timings: list[Timing] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    wall: float = 0.0


class BenchRun:
    """A run of `count` requests. `advance` is called as each of them ends; `timeout` is the longest silence of a
    stream, in seconds."""

    def __init__(
        self,
        target: BenchTarget,
        questions: Iterator[Question],
        count: int,
        timeout: float,
        advance: Callable[[], object] = lambda: None,
    ) -> None:
        self.target, self.questions, self.left = target, questions, count
        self.timeout, self.advance = timeout, advance
        self.outcomes, self.began = Outcomes(), 0.0

    async def run(self, load: Load, seed: int = 0) -> Outcomes:
        async with open_session(self.timeout, self.target.keeps_connections) as session:
            self.began = time.perf_counter()
            if load.request_rate is None:
                await asyncio.gather(*(self.stream(session) for _ in range(load.concurrency or 1)))
            else:
                await self.open_loop(session, load.request_rate, seed)
            self.outcomes.wall = time.perf_counter() - self.began
        return self.outcomes

    def next(self) -> Question | None:
        if not self.left:
            return None
        self.left -= 1
        return next(self.questions)

    async def one(self, session: "ClientSession", question: Question) -> None:
        try:
            self.outcomes.timings.append(await ask(session, self.target, question, self.began))
        except RequestFailed as error:
            self.outcomes.failures.append(str(error))
        self.advance()

    async def stream(self, session: "ClientSession") -> None:
        while (question := self.next()) is not None:
            await self.one(session, question)

    async def open_loop(self, session: "ClientSession", rate: float, seed: int) -> None:
        source, running = random.Random(seed), set()
        due = self.began
        while (question := self.next()) is not None:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            running.add(asyncio.create_task(self.one(session, question)))
            due += source.expovariate(rate)
        await asyncio.gather(*running)


@asynccontextmanager
async def open_session(timeout: float, keeps_alive: bool = True) -> "AsyncIterator[ClientSession]":
    """A session without a limit of connections of its own. Unless it `keeps_alive`, each request has its own."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    limits = ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=timeout)
    connector = TCPConnector(limit=0, force_close=not keeps_alive)
    async with ClientSession(connector=connector, timeout=limits, read_bufsize=1 << 20) as session:
        yield session
