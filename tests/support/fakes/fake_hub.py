# SPDX-License-Identifier: Apache-2.0
"""A hub of one model on loopback, which answers rightly except where a test wants a fault."""

import hashlib
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

COMMIT, LATER = "c" * 40, "d" * 40
MODEL = "tiny/llama"
# Files of at least so many bytes have a SHA-256, others the digest of Git's object.
LARGE = 64


@dataclass(frozen=True, slots=True)
class HubFault:
    """Deviations of one answer: another status, headers and body; an end of the connection behind `cut` bytes of the
    body, or an endless wait; and bytes behind its end. `where` begins the path of requests that have it."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    cut: int | None = None
    hangs: bool = False
    extra: bytes = b""
    where: str = f"/{MODEL}/resolve/"


def oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class FakeHubHandler(BaseHTTPRequestHandler):
    """The three pages of the hub's protocol: a revision, a list of files page by page, and a file."""

    server: "FakeHub"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        hub = self.server
        hub.asked.append((unquote(self.path), {name.lower(): value for name, value in self.headers.items()}))
        fault = next((one for one in hub.faults if self.path.startswith(one.where)), HubFault())
        if fault in hub.faults:
            hub.faults.remove(fault)
        if fault.status:
            return self.answer(fault.status, fault.body or b"no", fault)
        if self.path.startswith(f"/api/models/{MODEL}/revision/"):
            return self.answer(200, json.dumps({"id": MODEL, "sha": hub.commit}).encode(), fault)
        if self.path.startswith(f"/api/models/{MODEL}/tree/{hub.commit}"):
            return self.tree(fault)
        head = f"/{MODEL}/resolve/{hub.commit}/"
        name = unquote(self.path).removeprefix(head)
        if not self.path.startswith(head) or name not in hub.files:
            return self.answer(404, b"{}", fault)
        self.file(hub.files[name], fault)

    def tree(self, fault: HubFault) -> None:
        """List half of the files on each of two pages."""
        rows = [self.server.row(path) for path in self.server.listed]
        half, is_second = len(rows) // 2, "cursor" in self.path
        headers = {} if is_second else {"Link": f'<{self.server.url}{self.path}&cursor=2>; rel="next"'}
        self.answer(200, json.dumps(rows[half:] if is_second else rows[:half]).encode(), fault, headers)

    def file(self, content: bytes, fault: HubFault) -> None:
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        wanted = self.headers.get("Range")
        if wanted is None or self.headers.get("If-Range", tag) != tag:
            return self.answer(200, content, fault, {"ETag": tag})
        begin, size = int(wanted.removeprefix("bytes=").rstrip("-")), len(content)
        if begin >= size:
            return self.answer(416, b"", fault, {"Content-Range": f"bytes */{size}"})
        headers = {"ETag": tag, "Content-Range": f"bytes {begin}-{size - 1}/{size}"}
        self.answer(206, content[begin:], fault, headers)

    def answer(self, status: int, body: bytes, fault: HubFault, headers: Mapping[str, str] | None = None) -> None:
        body = fault.body if fault.body is not None else body + fault.extra
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {}), **fault.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if fault.cut is None else body[: fault.cut])
        self.server.sent += len(body) if fault.cut is None else min(fault.cut, len(body))
        if fault.hangs:
            self.wfile.flush()
            self.server.hung.set()
            self.server.over.wait(60)
        if fault.cut is not None:
            self.close_connection = True

    def log_message(self, format: str, *values: object) -> None:
        """Log nothing."""


class FakeHub(ThreadingHTTPServer):
    """`files` by path; `rows` replace rows of the list. `faults` are due one after the other; `asked` are the paths and
    headers of requests, `sent` counts bytes of bodies. `hung`: an answer waits, until all is `over`."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes], certificate: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), FakeHubHandler)
        self.files, self.commit = dict(files), COMMIT
        self.rows: dict[str, Any] = {}
        self.faults: list[HubFault] = []
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.sent = 0
        self.hung, self.over = threading.Event(), threading.Event()
        self.scheme = "http" if certificate is None else "https"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    @property
    def listed(self) -> list[str]:
        return list(dict.fromkeys([*self.files, *self.rows]))

    def row(self, path: str) -> Any:
        if path in self.rows:
            return self.rows[path]
        content = self.files[path]
        row = {"type": "file", "path": path, "size": len(content), "oid": oid(content)}
        if len(content) < LARGE:
            return row
        return row | {"oid": oid(b"pointer"), "lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}}

    def asked_files(self) -> list[tuple[str, str | None]]:
        """Return the names of the files that were asked for, with the ranges."""
        head = f"/{MODEL}/resolve/{self.commit}/"
        return [
            (path.removeprefix(head), headers.get("range")) for path, headers in self.asked if path.startswith(head)
        ]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave a client that is gone."""


@contextmanager
def fake_hub(files: Mapping[str, bytes], certificate: Path | None = None) -> Iterator[FakeHub]:
    with FakeHub(files, certificate) as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield hub
        finally:
            hub.over.set()
            hub.shutdown()
            thread.join()
