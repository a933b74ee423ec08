# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible server whose every answer is known."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAILS, REFUSED, HOSTILE = 6, 5, 3


class ServingHandler(BaseHTTPRequestHandler):
    """Streams two tokens in each event. Answers of FAILS tokens end with an error event, REFUSED ones get status 503,
    and HOSTILE ones an error that would move a terminal's cursor."""

    server: "KnownServer"

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": "known"}]})

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(question | {"path": self.path, "key": self.headers.get("authorization")})
        tokens = question["max_tokens"]
        if tokens == REFUSED:
            return self.answer(503, {"error": {"message": "no room"}})
        self.send_response(200)
        self.end_headers()
        chat = "messages" in question
        if chat:
            self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for _ in range(tokens // 2):
            self.event({"choices": [{"delta": {"content": "a b"}} if chat else {"text": "a b"}]})
        if tokens in (FAILS, HOSTILE):
            text = "the worker is gone" if tokens == FAILS else "\x1b[2Jgone\r\n" + "x" * 100_000
            return self.event({"error": {"message": text}})
        words = len(question["messages"][0]["content"].split()) if chat else len(question["prompt"])
        self.event({"choices": [], "usage": {"prompt_tokens": words, "completion_tokens": tokens}})
        self.wfile.write(b"data: [DONE]\n\n")

    def answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def event(self, body: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")

    def log_message(self, format: str, *values: object) -> None:
        pass


class KnownServer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ServingHandler)
        self.asked: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def known_server() -> Iterator[KnownServer]:
    with KnownServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
