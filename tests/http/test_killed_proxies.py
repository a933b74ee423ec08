# SPDX-License-Identifier: Apache-2.0
"""A proxy that is killed leaves its streams to the next one, or to another one: with real processes and scripted
workers. By default to one of two, and on a full disk; tests/world kills them at any point."""

import http.client
import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from books import differing
from running_proxy import heard, proxy
from scripted_worker import ScriptedWorker, eventually
from small_disk import filled, needed_disk

from pontil.runtime.tokenizer.tokenizer import Tokenizer

TEXT = "A stream that is long enough for whoever wants to kill something in the middle of it, at any place."
BODY = {"model": "tiny", "prompt": "tell me", "max_tokens": 120, "stream": True,
        "stream_options": {"include_usage": True}}  # fmt: skip


class Killable:
    """Proxy processes of one launch, each with a worker of its own."""

    def __init__(self, folder: Path, tokenizer_folder: Path, tokenizer: Tokenizer, proxies: int, window: float) -> None:
        self.folder, self.tokenizer_folder, self.tokenizer = folder, tokenizer_folder, tokenizer
        self.proxies, self.window, self.usage_log = proxies, window, folder / "usage.db"
        self.processes: dict[int, Any] = {}
        self.workers: list[ScriptedWorker] = []
        self.stack = ExitStack()

    def start(self, number: int, pace: float = 0.005) -> int:
        """Start a proxy and its worker; return its port."""
        control = f"ipc://{self.folder}/control-{number}-{len(self.workers)}"
        shared: dict[str, Any] = {"shared_folder": str(self.folder / "proxies")} if self.proxies > 1 else {}
        process = self.stack.enter_context(
            proxy(
                self.folder, self.tokenizer_folder, control=control, port=0, usage_log=str(self.usage_log),
                name=f"proxy:{number}", number=number, proxies=self.proxies, resume_window=self.window,
                resume_folder=str(self.folder / "streams"), **shared,
            )
        )  # fmt: skip
        answer = self.tokenizer.encode(TEXT, False)
        worker = ScriptedWorker(control, "mixed:0", self.tokenizer, answer, pace=pace)
        self.workers.append(worker)
        worker.start()
        self.processes[number] = process
        return int(heard(process, "ready")["url"].rpartition(":")[2])

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def drain(self, number: int, timeout: float) -> None:
        """End a proxy as a restart in order does."""
        alone = {"alone": True} if self.proxies == 1 else {}
        order = json.dumps({"kind": "drain", "timeout": timeout, "hand_over": True} | alone)
        self.processes[number].stdin.write(order + "\n")
        self.processes[number].stdin.flush()
        assert self.processes[number].wait(60) == 0

    def stop(self, number: int) -> None:
        """End a proxy as a launch that ends does."""
        self.processes[number].terminate()
        assert self.processes[number].wait(60) == 0

    def rows(self) -> list[tuple[str, str, int]]:
        with closing(sqlite3.connect(f"file:{self.usage_log}?mode=ro", uri=True)) as database:
            return database.execute("SELECT name, state, completion_tokens FROM requests ORDER BY name").fetchall()

    def close(self) -> None:
        for worker in self.workers:
            worker.die()
        self.stack.close()


@pytest.fixture
def launch(request: Any, tmp_path: Path, tokenizer_folder: Path, tokenizer: Tokenizer) -> Iterator[Killable]:
    proxies, window = request.param
    made = Killable(tmp_path, tokenizer_folder, tokenizer, proxies, window)
    try:
        yield made
    finally:
        made.close()
    assert [text for text in differing(made.usage_log) if "request " in text] == []


class Part:
    """A part of a stream, as one connection brought it."""

    def __init__(self, port: int, name: str, events: int = -1, event: str | None = None) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        asked = {"pontil-resume": "1"} if event is None else {"last-event-id": event}
        connection.request("POST", "/v1/completions", json.dumps(BODY), asked | {"x-request-id": name})
        answer = connection.getresponse()
        self.status, self.text, self.usage = answer.status, "", list[Any]()
        self.last = event or answer.getheader("x-pontil-stream")
        for line in answer if answer.status == 200 else ():
            if line.startswith(b"id: "):
                self.last = line[4:].decode().strip()
            elif line.startswith(b"data: {"):
                said = json.loads(line[6:])
                self.text += "".join(choice["text"] for choice in said["choices"])
                self.usage += [said["usage"]] if said["usage"] else []
                events -= 1
            if events == 0:
                break
        self.connection = connection


@pytest.mark.parametrize("launch", [pytest.param((1, 60.0), marks=pytest.mark.long), (2, 60.0)], indirect=True)
def test_streams_of_a_killed_proxy_go_on_at_the_next(launch: Killable) -> None:  # A12
    ports = {number: launch.start(number) for number in range(launch.proxies)}
    first = Part(ports[0], "kept", 20)
    launch.kill(0)
    rest = Part(launch.start(0), "kept", event=first.last) if launch.proxies == 1 else (
        Part(ports[1], "kept", event=first.last)
    )  # fmt: skip
    assert first.text + rest.text == TEXT and len(rest.usage) == 1
    eventually(lambda: launch.rows() == [("kept", "closed", rest.usage[0]["completion_tokens"])], "the row")


@pytest.mark.long
@pytest.mark.parametrize("launch", [(1, 60.0), (2, 60.0)], indirect=True)
def test_a_stream_whose_reader_has_left_goes_on_after_a_restart(launch: Killable) -> None:  # A12
    """The proxy ends once no connection is left, long before the answer does; one that is alone refuses, until its
    timeout is over."""
    ports = {number: launch.start(number, pace=1.0) for number in range(launch.proxies)}
    first = Part(ports[0], "kept", 2)
    first.connection.close()
    launch.drain(0, 0.0 if launch.proxies == 1 else 60.0)
    port = launch.start(0) if launch.proxies == 1 else ports[1]
    launch.workers[-1].pace = 0.005
    rest = Part(port, "kept", event=first.last)
    assert rest.status == 200 and first.text + rest.text == TEXT and len(rest.usage) == 1
    eventually(lambda: launch.rows() == [("kept", "closed", rest.usage[0]["completion_tokens"])], "the row")


@pytest.mark.long
@pytest.mark.parametrize("launch", [(1, 0.5), (2, 0.5)], indirect=True)
def test_a_stream_that_nobody_continues_is_lost_in_the_end(launch: Killable) -> None:  # A12
    ports = [launch.start(number, pace=0.1) for number in range(launch.proxies)]
    first = Part(ports[0], "left", 3)
    plain = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=60)
    plain.request("POST", "/v1/completions", json.dumps(BODY), {"x-request-id": "plain"})
    assert plain.getresponse().readline()
    eventually(lambda: [name for name, _, _ in launch.rows()] == ["left", "plain"], "both rows")
    launch.kill(0)
    port = ports[1] if launch.proxies > 1 else launch.start(0)
    eventually(lambda: {state for _, state, _ in launch.rows()} == {"lost(proxy)"}, "lost rows")
    assert Part(port, "left", event=first.last).status == 404
    eventually(lambda: not list((launch.folder / "streams").iterdir()), "no record")


@pytest.mark.long
@pytest.mark.parametrize("launch", [(1, 60.0), (2, 60.0)], indirect=True)
def test_the_end_of_a_launch_settles_streams_that_might_have_gone_on(launch: Killable) -> None:  # A12
    ports = [launch.start(number, pace=0.1) for number in range(launch.proxies)]
    assert Part(ports[0], "left", 3).status == 200
    eventually(lambda: [state for _, state, _ in launch.rows()] == ["open"], "the row")
    launch.kill(0)
    if launch.proxies == 1:
        launch.start(0)
    assert [state for _, state, _ in launch.rows()] == ["open"]
    launch.stop(launch.proxies - 1)
    assert [state for _, state, _ in launch.rows()] == ["lost(proxy)"]
    assert differing(launch.usage_log) == []


@pytest.mark.parametrize("launch", [(1, 60.0), pytest.param((2, 60.0), marks=pytest.mark.long)], indirect=True)
def test_a_proxy_that_is_killed_on_a_full_disk_serves_again(launch: Killable) -> None:  # A12
    with needed_disk(launch.folder) as disk:
        launch.usage_log = disk / "usage.db"
        ports = [launch.start(number, pace=0.1) for number in range(launch.proxies)]
        plain = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=60)
        plain.request("POST", "/v1/completions", json.dumps(BODY), {"x-request-id": "killed"})
        assert plain.getresponse().readline()
        eventually(lambda: [state for _, state, _ in launch.rows()] == ["open"], "the row")
        with filled(disk):
            launch.kill(0)
            port = launch.start(0)
            served = Part(port, "served")
            assert (served.status, served.text) == (200, TEXT)
            ready = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            ready.request("GET", "/ready")
            assert "the usage log cannot be written to" in json.load(ready.getresponse())["usage_log"]
        tokens = served.usage[0]["completion_tokens"]
        eventually(lambda: [row[:2] for row in launch.rows()] == [("killed", "lost(proxy)"), ("served", "closed")])
        assert launch.rows()[1][2] == tokens
        for number in range(launch.proxies):
            launch.stop(number)
        assert differing(launch.usage_log) == []


@pytest.mark.long
@pytest.mark.parametrize("launch", [(2, 60.0)], indirect=True)
def test_a_stream_survives_every_death(launch: Killable) -> None:
    ports = [launch.start(number) for number in range(2)]
    for round_ in range(4):
        at, name = round_ % 2, f"round-{round_}"
        part = Part(ports[at], name, 1 + 20 * round_)
        text = part.text
        for _ in range(3):
            launch.kill(at)
            other = 1 - at
            part = Part(ports[other], name, 12, part.last)
            text += part.text
            ports[at] = launch.start(at)
            at = other
        part = Part(ports[at], name, event=part.last)
        assert text + part.text == TEXT, name
    eventually(lambda: {state for _, state, _ in launch.rows()} == {"closed"}, "closed rows")
    assert len(launch.rows()) == 4 and len({tokens for _, _, tokens in launch.rows()}) == 1
