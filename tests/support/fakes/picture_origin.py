# SPDX-License-Identifier: Apache-2.0
"""A host on loopback from which images are fetched, whose replies are scripts, and names that lead to it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

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
    most_open: int = 0

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
        self.most_open = max(self.most_open, self.open)
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
