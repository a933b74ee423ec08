# SPDX-License-Identifier: Apache-2.0
"""A recording of a seed, which the live page shows with a slider: its snapshots, and where the time of each request
went. The file has the page in it, and opens in a browser without a server."""

import base64
import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from served_proxy import ProxyProcess
from virtual_time import SeededWorld

from pontil.http.page import page_files
from pontil.runtime.proxy.live_snapshot import LiveSnapshot
from pontil.runtime.wire.simulated.virtual_time import BEGIN

# Virtual seconds between two frames.
EVERY = 0.1
# Kinds of lines of a trace that are moments of a recording, with their tone.
MOMENTS = {
    "fault": "bad", "kill": "bad", "stop": "bad", "resume": "rest", "cut": "bad", "silent": "bad", "exit": "bad",
    "failure": "bad", "VIOLATION": "bad", "start": "rest", "changed": "wait",
}  # fmt: skip
IMPORT = re.compile(r'from "\./(\w+\.js)"')


class SeedRecorder:
    """Hears the lines of a trace, and takes frames of all proxies that serve when one is due. It adds no event: the
    trace is the same without it."""

    def __init__(self) -> None:
        self.world: SeededWorld | None = None
        self.proxies: Callable[[], list[ProxyProcess]] = list
        self.due = 0.0
        self.frames, self.moments = list[dict[str, Any]](), list[dict[str, Any]]()
        self.timelines: dict[str, Any] = {}
        self.snapshots: dict[ProxyProcess, LiveSnapshot] = {}

    def begin(self, world: SeededWorld, proxies: Callable[[], list[ProxyProcess]]) -> None:
        """Record this world, whose proxies these are."""
        self.world, self.proxies = world, proxies

    def take(self, now: float) -> None:
        frame: dict[str, Any] = {"at": round(now - BEGIN, 3), "snapshots": {}}
        for process in self.proxies():
            proxy = process.proxy
            assert proxy is not None
            taker = self.snapshots.setdefault(process, LiveSnapshot(proxy))
            # To learn whether it reaches a worker it would send it a message, which the seed does not have.
            readiness, proxy.readiness = proxy.readiness, replace(proxy.readiness, reaches=lambda worker: True)
            shown = frame["snapshots"][process.name] = taker.take()
            proxy.readiness = readiness
            for row in shown["requests"]:
                self.timelines[row["id"]] = proxy.timelines.shown(row["id"])
        if frame["snapshots"] or self.frames:
            self.frames.append(frame)

    def write(self, line: str) -> None:
        """Hear a line of the trace."""
        world = self.world
        if world is not None and world.current is None and world.time >= self.due:
            self.due = world.time + EVERY
            self.take(world.time)
        time, kind, *words = line.split()
        if kind in MOMENTS:
            at = round(float(time) - BEGIN, 3)
            self.moments.append({"at": at, "text": " ".join((kind, *words)), "tone": MOMENTS[kind]})

    def page(self, title: str) -> str:
        """Return the live page with this recording in it."""
        told = {"title": title, "moments": self.moments, "frames": self.frames, "timelines": self.timelines}
        return standalone_page(told)


def standalone_page(recording: dict[str, Any]) -> str:
    """Return the page as one file: modules import each other by names that are mapped to their texts."""
    folder = page_files.FOLDER
    modules = {f"page/{path.name}": data_url(path, "text/javascript") for path in sorted(folder.glob("*.js"))}
    told = json.dumps(recording).replace("<", "\\u003c")
    text = (folder / page_files.PAGE).read_text()
    replaced = {
        '<script type="module" src="ui/main.js"></script>': (
            f'<script type="importmap">{json.dumps({"imports": modules})}</script>\n'
            f'<script type="application/json" id="recorded">{told}</script>\n'
            '<script type="module">import "page/main.js";</script>'
        ),
        '<link rel="stylesheet" href="ui/page.css">': f"<style>{(folder / 'page.css').read_text()}</style>",
        "ui/icon.svg": data_url(folder / "icon.svg", "image/svg+xml"),
        "<title>pontil</title>": f"<title>{html.escape(recording['title'])}</title>",
    }
    for old, new in replaced.items():
        assert old in text, f"the page has no {old}"
        text = text.replace(old, new)
    return text


def data_url(path: Path, kind: str) -> str:
    body = IMPORT.sub(r'from "page/\1"', path.read_text()).encode()
    return f"data:{kind};base64,{base64.b64encode(body).decode()}"
