# SPDX-License-Identifier: Apache-2.0
"""Two proxies that share a usage log and the records of streams, and clients that continue these."""

import http.client
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from books import differing
from scripted_site import ScriptedSite, site

from pontil.runtime.tokenizer.tokenizer import Tokenizer

# Of receipts.
KEY = "29" * 32
TEXT = "The quick brown fox 😀 jumps over the lazy dog, and then it sleeps until the evening comes."
ASK = {"model": "tiny", "prompt": "tell me", "max_tokens": 100, "stream": True,
       "stream_options": {"include_usage": True}}  # fmt: skip
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100, "stream": True,
        "stream_options": {"include_usage": True}}  # fmt: skip
PATHS = {"/v1/completions": ASK, "/v1/chat/completions": CHAT}


class Reader:
    """A client that reads events one at a time, and keeps the last id."""

    def __init__(
        self, at: ScriptedSite, path: str, body: Any, event: str | None = None, **headers: str
    ) -> None:  # fmt: skip
        self.connection = at.connect()
        asked = {"last-event-id": event} if event is not None else {"pontil-resume": "1"}
        self.connection.request("POST", path, json.dumps(body).encode(), asked | headers)
        self.response: http.client.HTTPResponse = self.connection.getresponse()
        self.status, self.stream = self.response.status, self.response.getheader("x-pontil-stream")
        self.last = event or self.stream
        self.events: list[Any] = []

    def next(self) -> bool:
        """Read an event; return False at the end, also at that of a stream that broke."""
        while (read := self.response.readline()) and (line := read.decode().rstrip("\n")):
            if line.startswith("id: "):
                self.last = line[4:]
            elif line.startswith("data: "):
                self.events.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
        return bool(read) and bool(self.events) and self.events[-1] != "[DONE]"

    def read(self, events: int) -> "Reader":
        for _ in range(events):
            assert self.next()
        return self

    def all(self) -> "Reader":
        while self.next():
            pass
        return self

    def leave(self) -> None:
        assert self.connection.sock is not None or self.response.fp is not None
        self.response.close()
        self.connection.close()


def told(*readers: Reader, choice: int = 0) -> str:
    """Return the text of a choice, as several readers got it one after the other."""
    parts = [part for reader in readers for event in reader.events if event != "[DONE]"
             for part in event["choices"] if part["index"] == choice]  # fmt: skip
    return "".join(part.get("text") or part.get("delta", {}).get("content") or "" for part in parts)


def ends(*readers: Reader) -> list[tuple[int, str]]:
    return [
        (part["index"], part["finish_reason"])
        for reader in readers for event in reader.events if event != "[DONE]"
        for part in event["choices"] if part["finish_reason"]
    ]  # fmt: skip


def usages(*readers: Reader) -> list[Any]:
    return [event["usage"] for reader in readers for event in reader.events if event != "[DONE]" and event.get("usage")]


class Front:
    """Two proxies that share a usage log and the records of streams."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, window: float = 60.0) -> None:
        self.folder, self.tokenizer, self.window = folder, tokenizer, window
        self.usage_log = folder / "usage.db"
        self.opened: list[Any] = []
        self.sites: list[ScriptedSite] = []
        self.count = 0

    def start(self, number: int, **worker: Any) -> ScriptedSite:
        own = self.folder / f"site-{self.count}"
        self.count += 1
        own.mkdir()
        made = site(
            own, self.tokenizer, name=f"proxy:{number}", number=number, proxies=2, usage_log=str(self.usage_log),
            shared_folder=str(self.folder / "proxies"), resume_folder=str(self.folder / "streams"),
            resume_window=self.window, receipt_key=KEY,
        )  # fmt: skip
        served = made.__enter__()
        served.worker(text=TEXT, **({"pace": 0.004} | worker))
        self.opened.append(made)
        self.sites.append(served)
        return served

    def rows(self) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(f"file:{self.usage_log}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute("SELECT * FROM requests")]

    def close(self) -> None:
        for one in self.opened:
            one.__exit__(None, None, None)
        assert differing(self.usage_log) == []
