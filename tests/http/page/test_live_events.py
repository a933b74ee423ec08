# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a real proxy over real sockets: taken once for all viewers, and only while somebody looks."""

import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running_proxy import heard, proxy
from sanic import Sanic
from scripted_site import ScriptedSite
from scripted_worker import DEADLINE, eventually

from pontil.http.page import live_events
from pontil.http.page.live_events import LiveEvents
from pontil.http.server import timed_protocol
from pontil.runtime.proxy.live_snapshot import LiveSnapshot


class Viewer:
    """One open page."""

    def __init__(self, port: int, buffer: int | None = None) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        self.connection.connect()
        if buffer is not None:
            self.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.connection.request("GET", "/admin/events")
        self.response = self.connection.getresponse()

    def frame(self) -> bytes:
        """Return the next event; b"" at the stream's end."""
        lines = []
        for line in self.response:
            if line == b"\n":
                break
            lines.append(line)
        return b"".join(lines)

    def snapshot(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.frame().removeprefix(b"data: "))
        return told

    def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Return the first snapshot for which the condition holds."""
        found: list[dict[str, Any]] = []

        def holds() -> object:
            found[:] = [self.snapshot()]
            return condition(found[0])

        eventually(holds)
        return found[0]

    def close(self) -> None:
        self.response.close()
        self.connection.close()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_events, "EVERY", 0.02)


@pytest.fixture
def live(pair: ScriptedSite, fast: None) -> Iterator[LiveEvents]:
    found: LiveEvents = Sanic.get_app(f"pontil-{pair.proxy.incarnation}").ctx.page.live
    yield found
    eventually(lambda: found.viewers == 0 and found.task is None, "the end of the looking")


@pytest.fixture
def viewer(pair: ScriptedSite, live: LiveEvents) -> Iterator[Viewer]:
    made = Viewer(pair.port)
    yield made
    made.close()


def test_a_snapshot_has_processes_requests_and_sums(pair: ScriptedSite, viewer: Viewer) -> None:
    assert pair.chat("hello", max_tokens=2).status == 200
    shown = viewer.until(lambda told: told["requests"] and told["requests"][0]["state"] == "complete")
    assert viewer.response.getheader("content-type", "").startswith("text/event-stream")
    assert shown["proxy"]["model"] == "tiny" and not shown["proxy"]["supervised"]
    names = [row["name"] for row in shown["processes"]]
    assert names == ["proxy", "prefill:0", "decode:0"] and not any(row["managed"] for row in shown["processes"])
    figures = shown["processes"][2]["figures"]
    assert figures["running"] == 0 and figures["kv_used"] == 0 and figures["seats"] > 0
    row = shown["requests"][0]
    assert row["route"] == "/v1/chat/completions" and row["state"] == "complete" and row["completion_tokens"] > 0
    again = viewer.until(lambda told: told["prompts"] and told["prompts"][0]["prompt_tokens"] > 0)
    (prompts,) = again["prompts"]
    assert prompts["key"] == "-" and prompts["prompts"] >= 1 and prompts["cached_tokens"] <= prompts["prompt_tokens"]
    assert set(shown["totals"]) == {
        "running", "waiting", "queued", "delivered_per_second", "prompt_tokens_per_second", "kv_bytes_per_second",
    }  # fmt: skip


def test_one_snapshot_serves_all_viewers(
    pair: ScriptedSite, live: LiveEvents, viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, take = [0], LiveSnapshot.take

    def counted(self: LiveSnapshot) -> dict[str, Any]:
        taken[0] += 1
        return take(self)

    monkeypatch.setattr(LiveSnapshot, "take", counted)
    others = [Viewer(pair.port) for _ in range(4)]
    every = [viewer, *others]
    frames = [[one.frame() for _ in range(12)] for one in every]
    assert set.intersection(*map(set, frames)), "the same bytes for all"
    assert len(set().union(*frames)) <= taken[0] + 1, "none of a viewer's own"
    for one in others:
        one.close()
    eventually(lambda: live.viewers == 1)


def test_nothing_is_taken_while_nobody_looks(pair: ScriptedSite, live: LiveEvents) -> None:
    made = Viewer(pair.port)
    assert made.frame()
    made.close()
    eventually(lambda: live.task is None and live.viewers == 0)
    number = live.number
    again = Viewer(pair.port)
    assert again.snapshot()["at"] > 0 and live.number > number, "the first one is new"
    again.close()


def test_a_viewer_that_does_not_read_misses_snapshots_and_gets_the_newest(
    pair: ScriptedSite, live: LiveEvents, viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = LiveSnapshot.take
    monkeypatch.setattr(LiveSnapshot, "take", lambda self: take(self) | {"padding": "x" * (1 << 19)})
    slow = Viewer(pair.port, buffer=1 << 16)
    eventually(lambda: live.viewers == 2)
    before, last = live.number, 0.0
    while live.number < before + 40:
        last = viewer.snapshot()["at"]
    read = 1
    while slow.snapshot()["at"] < last:
        read += 1
    # The kernel's buffers hold a few; here one waits.
    assert read < 20
    slow.close()


def test_a_viewer_that_never_reads_is_disconnected(
    pair: ScriptedSite, live: LiveEvents, viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = LiveSnapshot.take
    monkeypatch.setattr(LiveSnapshot, "take", lambda self: take(self) | {"padding": "x" * (1 << 20)})
    monkeypatch.setattr(timed_protocol, "READER_PATIENCE", 0.1)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", pair.port))
        slow.sendall(b"GET /admin/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        eventually(lambda: live.viewers == 2)
        eventually(lambda: viewer.frame() and live.viewers == 1)


def test_one_viewer_too_many_is_told_so(pair: ScriptedSite, viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_events, "MOST_VIEWERS", 1)
    answer = pair.ask("GET", "/admin/events")
    assert answer.status == 503 and "close one" in answer.json["error"]["message"]
    assert viewer.frame()


def test_the_stream_ends_with_the_proxy(tmp_path: Path, tokenizer_folder: Path) -> None:
    with proxy(tmp_path, tokenizer_folder) as process:
        port = int(heard(process, "ready")["url"].rpartition(":")[2])
        made = Viewer(port)
        assert made.snapshot()["proxy"]["draining"] is False
        assert process.stdin is not None
        process.stdin.write('{"kind": "drain", "timeout": 30}\n')
        process.stdin.flush()
        while made.frame():
            pass
        assert process.wait(DEADLINE) == 0
        made.close()


def test_a_change_goes_to_the_supervisor_and_its_progress_comes_back(tmp_path: Path, tokenizer_folder: Path) -> None:
    """The proxy process alone: this test is its supervisor."""
    with proxy(tmp_path, tokenizer_folder) as process:
        port = int(heard(process, "ready")["url"].rpartition(":")[2])
        assert process.stdin is not None

        def tell(told: dict[str, Any]) -> None:
            assert process.stdin is not None
            process.stdin.write(json.dumps(told) + "\n")
            process.stdin.flush()

        rows = [{"name": "decode:0", "role": "decode", "pid": os.getpid(), "state": "ready", "device": "cpu"}]
        tell({"kind": "table", "rows": rows})
        made = Viewer(port)
        eventually(lambda: made.snapshot()["proxy"]["supervised"])
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        asking.request(
            "POST", "/admin/workers/decode%3A0/role", '{"role": "mixed"}', {"content-type": "application/json"}
        )
        number, request = heard(process, "asked")
        assert request == {"command": "role", "names": ["decode:0"], "role": "mixed"}
        tell({"kind": "change", "number": number, "say": "decode:0 works for mixed"})
        shown = made.until(lambda told: told["changes"] and told["changes"][0]["lines"])
        assert shown["changes"][0]["outcome"] is None
        tell({"kind": "change", "number": number, "end": "done", "code": 0})
        answer = asking.getresponse()
        assert (answer.status, json.loads(answer.read())["lines"]) == (200, ["decode:0 works for mixed"])
        asking.close()
        made.close()
