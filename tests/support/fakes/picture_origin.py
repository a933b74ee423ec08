# SPDX-License-Identifier: Apache-2.0
"""A host on loopback from which images are fetched, whose replies are scripts, and names that lead to it."""

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop

from pontil.runtime.stages.media.public_address import SystemNetwork

LOOPBACK = "127.0.0.1"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))

Script = Callable[[asyncio.StreamWriter], Coroutine[Any, Any, None]]


def reply(status: str = "200 OK", body: bytes = b"", **headers: str) -> bytes:
    """Return a reply whose headers, with _ for -, come before the body. It says a length only where one is given."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def file(body: bytes = PNG) -> bytes:
    return reply(body=body, Content_Length=str(len(body)))


def moved(location: str, status: str = "302 Found") -> bytes:
    return reply(status, Location=location, Content_Length="0")


@dataclass
class PictureOrigin:
    """A host with replies for its paths: bytes after which the connection ends, or a script that writes. It notes the
    requests that came, and how many connections are open."""

    replies: dict[str, bytes | Script] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    port: int = 0
    open: int = 0

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [request.split(" ")[1] for request in self.asked]

    @asynccontextmanager
    async def listening(self, tls: ssl.SSLContext | None = None) -> AsyncIterator["PictureOrigin"]:
        server = await asyncio.start_server(self.answer, LOOPBACK, 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            request = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(request)
            script = self.replies.get(request.split(" ")[1], reply("404 Not Found", Content_Length="0"))
            if isinstance(script, bytes):
                writer.write(script)
                await writer.drain()
            else:
                await until_left(script(writer), reader)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


async def until_left(script: Coroutine[Any, Any, None], reader: asyncio.StreamReader) -> None:
    """Go on with a script until its end, or until the client has left."""
    work, leaving = asyncio.ensure_future(script), asyncio.ensure_future(reader.read())
    try:
        await asyncio.wait([work, leaving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        work.cancel()
        leaving.cancel()
        await asyncio.gather(work, leaving, return_exceptions=True)


async def silent(writer: asyncio.StreamWriter) -> None:
    """Answer nothing."""
    await asyncio.Event().wait()


async def endless(writer: asyncio.StreamWriter) -> None:
    """Send a body without an end, in chunks."""
    writer.write(reply(Transfer_Encoding="chunked"))
    while not writer.is_closing():
        writer.write(b"400\r\n" + bytes(1024) + b"\r\n")
        await writer.drain()


class KnownNames(SystemNetwork):
    """A network whose names lead where this table says, and which counts the questions. With `trusted` its
    certificates are trusted."""

    def __init__(self, names: Mapping[str, list[str]], trusted: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self.names, self.context = names, trusted
        self.questions: list[str] = []

    async def resolve(self, host: str, port: int) -> list[str]:
        self.questions.append(host)
        if host not in self.names:
            raise OSError("no such host")
        return self.names[host]


def on_each_loop(script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do a script on asyncio's loop, and on the one that a proxy has."""
    for loop in (asyncio.new_event_loop(), uvloop.new_event_loop()):
        try:
            loop.run_until_complete(asyncio.wait_for(script(), 60))
        finally:
            for task in (left := asyncio.all_tasks(loop)):
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            loop.close()


@contextmanager
def picture_host(origin: PictureOrigin) -> Iterator[PictureOrigin]:
    """Have an origin listen in a thread of its own."""
    loop, ready, leave = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with origin.listening():
            ready.set()
            await leave.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30), "it listens"
        yield origin
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join()
        loop.close()
