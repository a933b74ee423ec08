# SPDX-License-Identifier: Apache-2.0
"""Hostile clients: requests of every route that the product's own description has, with fields that fit and that do
not, without keys, with forged ids, and such as are no HTTP."""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hostile_values import HostileValues
from http_reader import HttpReader
from request_connections import Dialer, PendingAnswer
from served_proxy import ProxyProcess
from site_plan import CALLERS
from virtual_time import SeededWorld

if TYPE_CHECKING:
    from seed_run import SeedRun

# Share of seeds with hostile clients, and how many of them.
HOSTILE, MOST = 0.5, 24
# Shares of those who leave, and within how many seconds.
LEAVES, LEAVES_WITHIN = 0.3, 1.5
# Seconds in which each has an answer, of those in which no fault was under way.
ANSWERED_WITHIN = 15.0
# Statuses that any request may have, whatever its route.
ANYWHERE = frozenset((204, 400, 401, 404, 405, 408, 413, 415, 417, 429, 431, 503))
# A sentence is no longer, and has no line end.
MOST_SAID = 700
SHORT_NAME = "h"
HEADS = (
    b"GET :::: HTTP/1.1\r\n\r\n", b"CONNECT a:80\r\n\r\n", b"\x00\x00\x00\x00\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length : 5\r\n\r\n{}\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    b"GET /health HTTP/1.1\nHost: a\n\n", b"GET /health HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
)  # fmt: skip
# Share of requests that go on with somebody's stream, at the path of streams that can be continued, and events of it.
FORGED, RESUMABLE = 0.1, "/v1/completions"
FORGERIES = (
    "", ":0.0", ":1.1", ":999999999.999999999", ":1.1e_0.0u3", ":3.9+0.1.1.0", "\u0661", ":-1.0", "../a",
    ":1.1+9.9.9e.9", ":1.0+0.1.4.0", ":2.5+0.3.9.1", ":0.0u999999999", ":0.0_0.0_0.0", ":9.1e",
)  # fmt: skip
BODIES = (
    b"", b"{", b"[]", b"null", b'{"prompt":"\xff"}', b'{"prompt":"\\ud83d"}', b'{"prompt":"a","prompt":"b"}',
    b'{"prompt":' + b"[" * 5000, b'{"temperature":NaN,"prompt":"a"}', b'{"seed":' + b"9" * 5000 + b',"prompt":"a"}',
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """The bytes of one request, the statuses that it may have, and its name."""

    name: str
    data: bytes
    statuses: frozenset[int]
    shown: str


class HostileCall:
    """The client of one such request."""

    def __init__(self, world: SeededWorld, request: HostileRequest, ended: Callable[[], None]) -> None:
        self.world, self.request, self.ended = world, request, ended
        self.pending: PendingAnswer | None = None
        self.began = world.now()
        self.ended_at: float | None = None

    def begin(self, dialer: Dialer, number: int, leaves: float | None) -> None:
        connection = dialer.dial(number)
        if connection is None:
            self.end("unheard")
            return
        self.pending = connection.ask(self, self.request.data)
        self.pending.reader.has_body = not self.request.data.startswith(b"HEAD ")
        if leaves is not None:
            self.world.after(leaves, self.leave)

    def leave(self) -> None:
        if self.ended_at is None and self.pending is not None:
            self.pending.connection.leave(self.pending)
            self.end("left")

    def end(self, how: object) -> None:
        if self.ended_at is None:
            self.ended_at = self.world.now()
            self.world.note("hostile", self.request.name, self.request.shown, how)
            self.ended()

    # The parts of an AnswerTaker.

    def received(self, new: bytes) -> None:
        return

    def held_up(self, seconds: float) -> None:
        self.began = self.world.now() + seconds

    def disconnected(self) -> None:
        self.end("disconnected")

    def answered(self, reader: HttpReader) -> None:
        assert reader.status is not None
        self.end(reader.status)
        if reader.status not in self.request.statuses:
            self.violate(f"got {reader.status} {reader.body[:200]!r}")
        elif reader.status >= 400 and (fault := fault_of(reader)):
            self.violate(f"got {reader.status} with {fault}: {reader.body[:200]!r}")

    def violate(self, what: str) -> None:
        self.world.violate(f"hostile_requests_have_a_defined_answer: {self.request.name} {self.request.shown} {what}")


def fault_of(reader: HttpReader) -> str | None:
    """Return what is wrong with the answer to a request that is refused, if it is not one clear sentence."""
    if not reader.has_body:
        return None
    try:
        error = json.loads(reader.body)["error"]
        # Ollama's errors are sentences.
        says = error if isinstance(error, str) else error["message"]
    except (ValueError, KeyError, TypeError):
        return "no error object"
    if not isinstance(says, str) or not says or len(says) > MOST_SAID or "\n" in says:
        return "no sentence"
    return "a traceback" if "Traceback" in says or "Error(" in says else None


class HostileCrowd:
    """The hostile clients of one seed. The first reads the product's description, as any client can."""

    def __init__(
        self, world: SeededWorld, dialer: Dialer, joins: Callable[[], None], leaves: Callable[[], None]
    ) -> None:
        self.world, self.dialer, self.joins, self.leaves = world, dialer, joins, leaves
        self.chance = world.random("hostile")
        self.calls: list[HostileCall] = []
        self.document: dict[str, Any] = {}
        # Ids of streams of others, which a client can have heard of.
        self.heard: Callable[[], list[str]] = list

    @property
    def names(self) -> set[str]:
        """The names that the usage log may have of their requests."""
        return {call.request.name for call in self.calls} | {SHORT_NAME}

    def plan(self, begin: float, seconds: float, heard: Callable[[], list[str]]) -> None:
        self.heard = heard
        if self.chance.random() < HOSTILE:
            for number in range(self.chance.randrange(1, MOST)):
                self.joins()
                self.world.at(begin + self.chance.random() * seconds, partial(self.attack, number))

    def attack(self, number: int) -> None:
        """Make one request, once the description is there."""
        chance = self.world.random(f"hostile/{number}")
        if not self.document and (process := self.dialer.find()):
            self.document = description_of(process)
        if not self.document:
            self.leaves()
            return
        call = HostileCall(self.world, request_of(f"h{number}", chance, self.document, self.heard()), self.leaves)
        self.calls.append(call)
        call.begin(self.dialer, 1000 + number, chance.random() * LEAVES_WITHIN if chance.random() < LEAVES else None)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the description."""

    method: str
    path: str
    about: dict[str, Any]

    @property
    def schema(self) -> dict[str, Any] | None:
        content = self.about.get("requestBody", {}).get("content", {})
        found: dict[str, Any] | None = content.get("application/json", {}).get("schema")
        return found

    @property
    def statuses(self) -> frozenset[int]:
        return frozenset(map(int, self.about["responses"])) | ANYWHERE


def request_of(name: str, chance: random.Random, document: dict[str, Any], heard: list[str]) -> HostileRequest:
    """Return one hostile request."""
    if chance.random() < 0.08:
        head = chance.choice(HEADS)
        return HostileRequest(name, head, ANYWHERE | {200, 403}, repr(head[:30]))
    found = list(operations(document))
    with_body = [one for one in found if one.schema is not None]
    one = chance.choice(with_body if chance.random() < 0.8 else found)
    is_forged = bool(heard) and chance.random() < FORGED
    if is_forged:
        one = next(one for one in found if one.path == RESUMABLE)
    values = HostileValues(chance)
    path, method = one.path, one.method
    while "{" in path:
        before, _, rest = path.partition("{")
        path = before + chance.choice(("a", "%00", "..", "x" * 300, "tiny", "%c3%a9")) + rest.partition("}")[2]
    if chance.random() < 0.04:
        method = chance.choice(("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "POST"))
    body = b""
    if one.schema is not None:
        body = json.dumps(values.body(one.schema)).encode() if chance.random() < 0.92 else chance.choice(BODIES)
    headers = {"host": "localhost", "x-request-id": name, "content-type": "application/json"}
    headers |= odd_headers(chance)
    if is_forged:
        headers["last-event-id"] = chance.choice(heard) + chance.choice(FORGERIES)
    if headers.get("content-encoding") == "gzip" and chance.random() < 0.8:
        body = gzip.compress(body, mtime=0)
    headers["content-length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    data = f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body
    statuses = one.statuses | ({200} if method == "OPTIONS" else set()) | {409 if "last-event-id" in headers else 400}
    return HostileRequest(name, data, statuses, f"{method} {path[:60]} {body[:150]!r}")


def odd_headers(chance: random.Random) -> dict[str, str]:
    """Return the headers of a client's key, and at times such as ask for something odd."""
    made = {"authorization": f"Bearer {chance.choice(list(CALLERS.values()))}"}
    draw = chance.random()
    if draw < 0.06:
        made["authorization"] = chance.choice(("", "Bearer ", "Bearer wrong", "Basic a", "Bearer key-of-ann extra"))
    elif draw < 0.1:
        made["last-event-id"] = f"{chance.getrandbits(128):032x}{chance.choice(FORGERIES)}"
    elif draw < 0.2:
        made["pontil-resume"] = chance.choice(("1", "0", "yes"))
    elif draw < 0.24:
        made["content-encoding"] = chance.choice(("gzip", "br"))
    elif draw < 0.27:
        made["content-type"] = chance.choice(
            ("text/plain", "application/json; charset=latin-1", "", "multipart/form-data")
        )
    elif draw < 0.29:
        made["expect"] = chance.choice(("100-continue", "gold"))
    elif draw < 0.31:
        made["x-request-id"] = SHORT_NAME
    elif draw < 0.33:
        made["traceparent"] = chance.choice(("00-" + "f" * 32 + "-" + "f" * 16 + "-01", "00-0-0-0", "zz"))
    return made


def description_of(process: ProxyProcess) -> dict[str, Any]:
    """Return what a proxy answers to GET /openapi.json."""
    assert process.service is not None
    routes: Any = process.service.app.router.routes
    own = next(one.handler for one in routes if one.path == "openapi.json" and "GET" in one.methods)
    described: dict[str, Any] = json.loads(own.__self__.body)
    return described


def operations(document: dict[str, Any]) -> Iterator[Operation]:
    """Yield what can be asked for. The live page's events have no end."""
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            if path != "/admin/events":
                yield Operation(method.upper(), path, about)


def hostile_requests_have_a_defined_answer(run: "SeedRun") -> Iterator[str]:
    """Every hostile request has an answer, or the end of its connection, within a bound from the last fault."""
    for call in run.hostile.calls:
        ended = run.world.time if call.ended_at is None else call.ended_at
        waited = ended - max(call.began, min(run.made.over_at, ended))
        if call.ended_at is None or waited > ANSWERED_WITHIN:
            yield f"{call.request.name} {call.request.shown} waits for {waited:.1f} s"
