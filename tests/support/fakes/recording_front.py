# SPDX-License-Identifier: Apache-2.0
"""A server before the server, which passes all on as it comes and keeps what was asked and with which status it was
answered."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TIMEOUT = 1800.0
# Those of one connection only.
PER_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass
class RecordedExchange:
    """A request and the status of its answer, which it has once that is whole. `pieces` are those of the answer that
    have come, and `said` is its text where it is an error."""

    method: str
    path: str
    body: Any
    status: int = 0
    ignored: str = ""
    said: str = ""
    pieces: int = 0


@dataclass
class RecordingFront:
    port: int
    exchanges: list[RecordedExchange] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def passed_on(handler: BaseHTTPRequestHandler, target: int, seen: list[RecordedExchange]) -> None:
    body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
    exchange = RecordedExchange(handler.command, handler.path, json.loads(body) if body else None)
    seen.append(exchange)
    connection = http.client.HTTPConnection("127.0.0.1", target, timeout=TIMEOUT)
    headers = {name: value for name, value in handler.headers.items() if name.lower() not in PER_HOP}
    connection.request(handler.command, handler.path, body, headers)
    answer = connection.getresponse()
    exchange.ignored = answer.getheader("x-pontil-ignored") or ""
    handler.send_response(answer.status)
    for name, value in answer.getheaders():
        if name.lower() not in PER_HOP:
            handler.send_header(name, value)
    handler.send_header("connection", "close")
    handler.end_headers()
    while piece := answer.read1(65536):
        if answer.status >= 400:
            exchange.said += piece.decode(errors="replace")
        handler.wfile.write(piece)
        handler.wfile.flush()
        exchange.pieces += 1
    connection.close()
    # Told last: an exchange with a status is whole.
    exchange.status = answer.status


@contextmanager
def recording_front(target: int) -> Iterator[RecordingFront]:
    """Serve on a port of its own whatever the server on port `target` answers."""
    seen: list[RecordedExchange] = []

    class RecordingHandler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.close_connection = True
            self.raw_requestline = self.rfile.readline(65537)
            if self.raw_requestline and self.parse_request():
                with suppress(ConnectionError):  # of a client that has left
                    passed_on(self, target, seen)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: the exchanges are kept."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), RecordingHandler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield RecordingFront(server.server_port, seen)
    finally:
        server.shutdown()
        server.server_close()
