# SPDX-License-Identifier: Apache-2.0
"""A client of a server that keeps one stream, and whose connections break where a test wants it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pontil.launcher.tools.bench.stream_client import ConnectionBroke, RequestRefused

NAME = "s"


@dataclass(frozen=True)
class Cut:
    """A connection that breaks after so many bytes of what is told, in pieces of `piece` bytes; before its head if
    there are none; a `status` refuses it instead."""

    after: int | None = None
    piece: int = 1 << 16
    status: int = 200


@dataclass
class CuttingClient:
    """`cuts` are those of one connection after the other; later ones are whole. `asked` has the headers of each."""

    events: Sequence[bytes]
    cuts: list[Cut] = field(default_factory=list)
    asked: list[Mapping[str, str]] = field(default_factory=list)
    names: bool = True

    @asynccontextmanager
    async def post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator["CuttingAnswer"]:
        self.asked.append(headers)
        cut = self.cuts.pop(0) if self.cuts else Cut()
        if cut.status != 200:
            raise RequestRefused(cut.status, "not now")
        if cut.after == 0:
            raise ConnectionBroke("reset")
        last = headers.get("Last-Event-ID", NAME)
        begin = 0 if last == NAME else int(last.partition(":")[2]) + 1
        told = [self.event(number) for number in range(begin, len(self.events))]
        yield CuttingAnswer(b"".join(told), cut, {"x-pontil-stream": NAME} if self.names else {})

    def event(self, number: int) -> bytes:
        name = b"" if self.events[number] == b"[DONE]" else b"id: s:%d\n" % number
        return name + b"data: " + self.events[number] + b"\n\n"


@dataclass
class CuttingAnswer:
    """An answer whose `content` is read as that of a connection."""

    data: bytes
    cut: Cut
    headers: Mapping[str, str]

    @property
    def content(self) -> "CuttingAnswer":
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        end = len(self.data) if self.cut.after is None else self.cut.after
        for begin in range(0, min(end, len(self.data)), self.cut.piece):
            yield self.data[begin : min(begin + self.cut.piece, end)]
        if self.cut.after is not None:
            raise ConnectionBroke("reset")
