# SPDX-License-Identifier: Apache-2.0
"""Scenarios of a proxy's event loop, and of the connections of its clients."""

import asyncio
from collections.abc import Callable
from typing import Any

from scenario import Facts, Scenario
from side import BOUND, FIRST_LOOK, Side

# Bytes that a client and the kernel do not take at once.
MUCH = 16 << 20


class NotingProtocol(asyncio.Protocol):
    """A server's side of a connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.data, self.ends, self.is_paused = b"", 0, False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.ends += 1

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False


async def soon(condition: Callable[[], bool]) -> bool:
    end = asyncio.get_running_loop().time() + BOUND
    while not condition() and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(FIRST_LOOK)
    return condition()


def timers(side: Side) -> Facts:
    async def play() -> Facts:
        loop, called = asyncio.get_running_loop(), list[str]()
        loop.call_later(0.04, called.append, "late")
        loop.call_later(0.02, called.append, "early")
        loop.call_later(0.03, called.append, "cancelled").cancel()
        loop.call_soon(called.append, "soon")
        loop.call_soon(called.append, "next")
        await soon(lambda: "late" in called)
        return {"called": called}

    return side.in_a_loop(play)


def executor(side: Side) -> Facts:
    def fail() -> None:
        raise ValueError("as it should")

    async def play() -> Facts:
        loop, done = asyncio.get_running_loop(), list[str]()
        waiting = loop.run_in_executor(None, lambda: 7)
        loop.call_soon(done.append, "the loop goes on")
        waiting.add_done_callback(lambda found: done.append(str(found.result())))
        await soon(lambda: len(done) == 2)
        failed = loop.run_in_executor(None, fail)
        await asyncio.wait([failed])
        left = loop.run_in_executor(None, done.append, "nobody waits for it")
        left.cancel()
        return {"done": done[:2], "failed": str(failed.exception()), "cancelled": left.cancelled()}

    return side.in_a_loop(play)


def connection_of_a_client(side: Side) -> Facts:
    async def play() -> Facts:
        made = list[NotingProtocol]()

        def make() -> NotingProtocol:
            made.append(NotingProtocol())
            return made[-1]

        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        client = side.connect(server)
        for piece in (b"one ", b"two ", b"three"):
            client.send(piece)
        whole = await soon(lambda: bool(made) and made[0].data == b"one two three")
        transport = made[0].transport
        assert transport is not None
        transport.write(b"an answer ")
        transport.write(b"in parts")
        transport.close()
        ended = await soon(lambda: client.has_ended and made[0].ends == 1)
        other = side.connect(server)
        other.send(b"x")
        await soon(lambda: len(made) == 2 and made[1].data == b"x")
        other.leave()
        left = await soon(lambda: made[1].ends == 1)
        server.close()
        return {"comes whole": whole, "its answer": client.data.decode(), "closed": ended, "left": left}

    return side.in_a_loop(play)


def client_that_reads_nothing(side: Side) -> Facts:
    async def play() -> Facts:
        made = NotingProtocol()
        server = await asyncio.get_running_loop().create_server(lambda: made, "127.0.0.1", 0)
        client = side.connect(server, reads=False)
        await soon(lambda: made.transport is not None)
        assert made.transport is not None
        made.transport.write(bytes(MUCH))
        facts = {"bytes wait": made.transport.get_write_buffer_size() > 0, "it is told to pause": made.is_paused}
        client.leave()
        await soon(lambda: made.ends == 1)
        server.close()
        return facts

    return side.in_a_loop(play)


SCENARIOS = (
    Scenario("timers", timers, {"called": ["soon", "next", "early", "late"]}),
    Scenario("executor", executor, {
        "done": ["the loop goes on", "7"], "failed": "as it should", "cancelled": True,
    }),
    Scenario("connection-of-a-client", connection_of_a_client, {
        "comes whole": True, "its answer": "an answer in parts", "closed": True, "left": True,
    }),
    Scenario("client-that-reads-nothing", client_that_reads_nothing, {
        "bytes wait": True, "it is told to pause": True,
    }, {"bytes wait": False, "it is told to pause": False}),
)  # fmt: skip
