# SPDX-License-Identifier: Apache-2.0
"""A trace of one streamed token through the proxy's process: it agrees with the page about a request."""

import asyncio.events
import http.client
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from scripted_site import ScriptedSite, site
from scripted_worker import ScriptedWorker

from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot
from pontil.runtime.proxy.fleet.worker_release import WorkerRelease
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Message, Step, Submit

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "internals" / "request.md"
ROW = re.compile(r"^\| (\w+) \| `([\w/.]+)` \| [^|]+ \|$", re.MULTILINE)
LETTERS = "abc"


def product_file(code: CodeType) -> str | None:
    """Return the file of the product that this code is of, if it is of one."""
    if not code.co_filename.startswith(str(ROOT)):
        return None
    name = str(Path(code.co_filename).relative_to(ROOT))
    return name if name.startswith(("launcher/", "runtime/", "gpu_ops/", "http/")) else None


class Turns:
    """A profile function for an event loop's thread. For each callback of the loop that writes to a client it keeps the
    product's files whose functions were called before the write, in order."""

    def __init__(self) -> None:
        self.turn: list[str] = []
        self.written: list[list[str]] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "_run" and code.co_filename == asyncio.events.__file__:
            self.turn = []
        elif event == "call" and (name := product_file(code)) is not None:
            self.turn.append(name)
        elif event == "c_call" and argument.__name__ == "send":
            connection = argument.__self__
            if isinstance(connection, socket.socket) and connection.family == socket.AF_INET:
                self.written.append(self.turn.copy())


def rows_of_page() -> dict[str, list[str]]:
    """Return the files of each part of the path, in the order of the table."""
    rows: dict[str, list[str]] = {}
    (section,) = re.findall(r"^## One streamed request\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for way, name in ROW.findall(section):
        rows.setdefault(way, []).append(name)
    return rows


def silent(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    return iter(())


def read_until(response: http.client.HTTPResponse, text: bytes) -> None:
    line = b""
    while text not in line:
        line = response.readline()
        assert line, f"the stream ended before {text!r}"


def message_of(worker: ScriptedWorker, submit: Submit, index: int, ids: list[int]) -> Message:
    """Return a token's message as a worker sends it for each row of a step."""
    return Step(worker.incarnation, worker.proxy, [submit.request_id], [[0, 0, index, len(submit.prompt), 0, *ids]])


def trace(served: ScriptedSite) -> list[str]:
    """Return the files that handle the third token of a stream, by first call, from its arrival to its write."""
    worker, turns = served.worker(script=silent), Turns()
    connection = served.connect()
    body = b'{"stream": true, "max_tokens": 9, "stop": ["zz"], "messages": [{"role": "user", "content": "hi"}]}'
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    submit = worker.submits.get(timeout=60)
    ids = served.tokenizer.encode(LETTERS, False)
    worker.say(message_of(worker, submit, 0, ids[:1]))
    response = connection.getresponse()
    read_until(response, b'"a"')
    # Heartbeats stop here. Earlier ones are read before the next token: one socket keeps the order.
    worker.beat = lambda socket: None  # type: ignore[method-assign]
    worker.say(message_of(worker, submit, 1, ids[1:2]))
    read_until(response, b'"b"')
    served.loop.call_soon_threadsafe(sys.setprofile, turns)
    worker.say(message_of(worker, submit, 2, ids[2:3]))
    read_until(response, b'"c"')
    served.loop.call_soon_threadsafe(sys.setprofile, None)
    connection.close()
    (files,) = turns.written
    return list(dict.fromkeys(files))


def test_a_streamed_token_is_in_the_files_that_the_page_names(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer) as served:
        files = trace(served)
    listed = "\n".join(files)
    assert rows_of_page()["token"] == files, f"the page's table is not what a token does:\n{listed}"


def test_a_plain_request_passes_the_files_that_the_page_names(tmp_path: Path, tokenizer: Tokenizer) -> None:
    files: set[str | None] = set()
    with site(tmp_path, tokenizer) as served:
        worker = served.worker(script=silent)
        served.loop.call_soon_threadsafe(sys.setprofile, lambda frame, *_: files.add(product_file(frame.f_code)))
        connection = served.connect()
        body = b'{"stream": true, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}'
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        worker.submits.get(timeout=60)
        served.loop.call_soon_threadsafe(sys.setprofile, None)
        connection.close()
    assert set(rows_of_page()["request"]) <= files, set(rows_of_page()["request"]) - files


def test_the_page_names_files_that_are_there_once() -> None:
    names = [name for part in rows_of_page().values() for name in part]
    assert not [name for name in names if not (ROOT / name).is_file()]
    assert len(names) == len(set(names)) and list(rows_of_page()) == ["request", "worker", "token"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_one_snapshot_of_the_registry_decides_a_request(
    pair: ScriptedSite, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    registry, taken = pair.proxy.registry.generating, list[RegistrySnapshot]()
    take = registry.snapshot

    def snapshot(begun: WorkerRelease | None = None) -> RegistrySnapshot:
        taken.append(take(begun))
        return taken[-1]

    monkeypatch.setattr(registry, "snapshot", snapshot)
    body = {"prompt": ["hi", "ho"], "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
    del body["messages" if path == "/v1/completions" else "prompt"]
    answer = pair.ask("POST", path, body)
    assert answer.status == 200 and len(taken) == 1
    assert answer.events[0]["system_fingerprint"] == taken[0].system_fingerprint(pair.proxy.config.version)
