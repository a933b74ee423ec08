# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible server that gives right answers, except where a test wants a fault."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ("the", "boat", "turns", "home")
# Faults of an answer, by the name that a test gives.
CHANGED, SHORT, CUT_OFF, ERROR, BUSY, SHUT = "changed", "short", "cut off", "error", "busy", "shut"
ODD_SHAPE = "odd shape"
# The connection ends before the head of an answer, and before the end of one; and a stream is not known any more.
RESET, BROKEN, FORGOTTEN = "reset", "broken", "forgotten"


class FaultyHandler(BaseHTTPRequestHandler):
    """Answers each completion with WORDS, and with the next fault that is due instead. A stream that asks for it has a
    name and ids, and is continued."""

    server: "FaultyServer"

    def do_GET(self) -> None:
        if self.server.keys and self.headers.get("authorization") not in self.server.keys:
            return self.whole(401, {"error": {"message": "no such key"}})
        self.whole(200, {"data": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.server.next_fault(body, dict(self.headers))
        if fault == RESET:
            return
        if fault == FORGOTTEN:
            return self.whole(404, {"error": {"message": "there is no stream of this id"}})
        if fault in (BUSY, SHUT):
            retry = {"retry-after": "1"} if fault == BUSY else {}
            return self.whole(503, {"error": {"message": "no room"}}, retry)
        if "refuse" in str(body.get("prompt", "")):
            return self.whole(400, {"error": {"message": "no such parameter"}})
        usage = {"prompt_tokens": 3, "completion_tokens": len(WORDS)}
        if not body.get("stream"):
            choice = {"index": 0, "text": " ".join(WORDS), "token_ids": [0, 1, 2, 3], "finish_reason": "length"}
            return self.whole(200, {"choices": [choice], "usage": usage})
        self.stream(fault, usage)

    def stream(self, fault: str | None, usage: dict[str, Any]) -> None:
        last = self.headers.get("last-event-id")
        self.ids = last is not None or self.headers.get("pontil-resume") == "1"
        self.told = 0 if last in (None, "s") else int(str(last).partition(":")[2]) + 1
        self.send_response(200)
        if fault == BROKEN:
            self.send_header("content-length", "99999")
        if self.ids:
            self.send_header("x-pontil-stream", "s")
        self.end_headers()
        for number, word in enumerate(WORDS):
            if number < self.told:
                continue
            if fault in (CUT_OFF, BROKEN) and number == 2:
                return
            text = "sinks" if fault == CHANGED and number == 2 else word
            finish = "length" if number == len(WORDS) - 1 else None
            self.event({"choices": [{"index": 0, "text": text, "token_ids": [number], "finish_reason": finish}]})
        if fault == ODD_SHAPE:
            return self.event({"choices": 3})
        if fault == ERROR:
            return self.event({"error": {"message": "the worker is gone"}})
        self.event({"choices": [], "usage": usage})
        if fault != SHORT:
            self.wfile.write(b"data: [DONE]\n\n")

    def whole(self, status: int, body: dict[str, Any], headers: "dict[str, str] | None" = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def event(self, body: dict[str, Any]) -> None:
        name = b"id: s:%d\n" % self.told if self.ids else b""
        self.told += 1
        self.wfile.write(name + b"data: " + json.dumps(body).encode() + b"\n\n")

    def log_message(self, format: str, *values: object) -> None:
        """Log nothing."""


class FaultyServer(ThreadingHTTPServer):
    """`faults` are due one after the other, each in one answer; `asked` are the bodies so far, `heads` the headers.
    With `keys`, pages are shown to these headers of authorization only."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FaultyHandler)
        self.faults: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        self.keys: set[str] = set()
        self.lock = threading.Lock()

    def next_fault(self, body: dict[str, Any], head: dict[str, str]) -> str | None:
        with self.lock:
            self.asked.append(body)
            self.heads.append({name.lower(): value for name, value in head.items()})
            return self.faults.pop(0) if self.faults else None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def faulty_server() -> Iterator[FaultyServer]:
    with FaultyServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
