# SPDX-License-Identifier: Apache-2.0
"""Clients of proxies on hosts whose links are cut: short requests all the time, and streams that stay open."""

import contextlib
import json
import re
import subprocess
import threading
import time
from itertools import count
from typing import Any

from effort import is_long
from link_table import CutOutcome
from network_hosts import Hosts
from served import START_TIMEOUT, wait_for

# A request that nobody answers is given up before the proxy does so.
PATIENCE = 20.0
# Seconds between two requests of a client: what is measured is faults, on machines that have more to do.
PAUSE = 0.05
# Tokens of a stream that is still open when a link is cut, and of a model that has room for it.
LONG_ANSWER, LONG_CONTEXT = 3000 if is_long() else 1200, 4096
# Longer than the longest cut, and than a stream takes.
STREAM_PATIENCE = 300.0
# Directions of links, from a sending to a receiving host.
Ways = tuple[tuple[str, str], ...]


class SteadyLoad:
    """Requests one after the other, by `loaders` at once, to the proxy on a host: when each began and ended, and
    whether it was answered."""

    def __init__(self, hosts: Hosts, on: str = "proxy", loaders: int = 2) -> None:
        self.hosts, self.on, self.numbers, self.over = hosts, on, count(), threading.Event()
        self.done: list[tuple[float, float, bool]] = []
        self.threads = [threading.Thread(target=self.load, daemon=True) for _ in range(loaders)]

    def load(self) -> None:
        while not self.over.wait(PAUSE):
            number, began = next(self.numbers), time.monotonic()
            prompt = [20 + (number + 13 * place) % 200 for place in range(40)]
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
            answer = self.hosts.fetch("/v1/completions", body, PATIENCE, self.on)
            whole = answer is not None and json.loads(answer)["usage"]["completion_tokens"] == 4
            self.done.append((began, time.monotonic(), whole))

    def __enter__(self) -> "SteadyLoad":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *what: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(PATIENCE + 10)

    def between(self, begin: float, end: float) -> list[tuple[float, float, bool]]:
        """Return the requests that were open at any time between these moments."""
        return [one for one in self.done if one[1] >= begin and one[0] < end]

    def answered_after(self, moment: float) -> float | None:
        """Return when the first request ended well that began after this moment."""
        return min((ended for began, ended, whole in list(self.done) if whole and began >= moment), default=None)

    def wait_for_answer(self, moment: float) -> float:
        ended = wait_for(lambda: self.answered_after(moment), PATIENCE * 3, "an answer")
        assert ended is not None
        return ended


StreamedAnswer = tuple[list[int], dict[str, Any]]


class OpenStream:
    """A long stream from the proxy on a host, read in the background: its token `ids`, when each event came, and the
    usage at its end."""

    def __init__(self, hosts: Hosts, on: str = "proxy") -> None:
        body = {
            "model": "tiny", "prompt": [20 + 7 * place % 200 for place in range(50)], "max_tokens": LONG_ANSWER,
            "seed": 1, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }  # fmt: skip
        self.process = subprocess.Popen(
            hosts.curl("/v1/completions", body, STREAM_PATIENCE, on), stdout=subprocess.PIPE, text=True
        )
        self.ids: list[int] = []
        self.arrivals = [time.monotonic()]
        self.usage: dict[str, Any] = {}
        self.error: Any = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("data: {"):
                self.take(json.loads(line[6:]))
        self.process.wait()
        self.ended.set()

    def take(self, event: dict[str, Any]) -> None:
        self.arrivals.append(time.monotonic())
        self.error = event.get("error", self.error)
        self.ids += [token for choice in event.get("choices", ()) for token in choice["token_ids"]]
        self.usage = event.get("usage") or self.usage

    def runs(self) -> "OpenStream":
        """Wait until tokens come."""
        wait_for(lambda: len(self.ids) > 5, 60, "tokens of a stream")
        return self

    def whole(self) -> StreamedAnswer:
        """Return the tokens and the usage of the stream, once it has ended; what its prompt found in a cache may differ
        from one request to the next."""
        assert self.ended.wait(STREAM_PATIENCE)
        assert self.error is None, self.error
        return self.ids, {name: count for name, count in self.usage.items() if isinstance(count, int)}

    @property
    def pause(self) -> float:
        """Return the longest time without tokens."""
        return max(after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False))


def handoffs(hosts: Hosts, on: str = "proxy") -> float:
    """Return how many handoffs were complete, as the proxy on a host knows."""
    told = re.search(r'^pontil_handoffs_total{result="complete"} (\S+)', hosts.fetch("/metrics", on=on) or "", re.M)
    return float(told[1]) if told else 0.0


def one_more_handoff(hosts: Hosts, timeout: float, on: str = "proxy") -> None:
    before = handoffs(hosts, on)
    wait_for(lambda: handoffs(hosts, on) > before, timeout, "a handoff")


def name_of(link: str, seconds: float) -> str:
    """Return the id of a test of this cut."""
    return f"{link.replace('–', '-').replace('→', '-to-').replace(' ', '-')}-{seconds:g}"


def cut_once(
    hosts: Hosts, link: str, ways: Ways, seconds: float, proxy: str = "proxy", others: str | None = None
) -> tuple[CutOutcome, StreamedAnswer]:
    """Cut these ways for so long, while clients of a proxy have requests and a stream open, and those of the `others`'
    proxy, if there is one. Return what was measured, and the answer of the stream. Requests are those of the others,
    where there are some."""
    with contextlib.ExitStack() as stack:
        loads = [stack.enter_context(SteadyLoad(hosts, on)) for on in (proxy, others) if on is not None]
        one_more_handoff(hosts, 60, proxy)
        stream = OpenStream(hosts, proxy).runs()
        cut_at = time.monotonic()
        for one, other in ways:
            hosts.lose(one, other)
        assert not stream.ended.is_set(), "a stream that is open while the link is cut"
        loads[0].over.wait(seconds)  # as long as the link is meant to be cut
        before, back_at = handoffs(hosts, proxy), time.monotonic()
        for one, other in ways:
            hosts.mend(one, other)
        wait_for(lambda: handoffs(hosts, proxy) > before, START_TIMEOUT, "a handoff over the link that is back")
        used_at = time.monotonic()
        answered = loads[-1].wait_for_answer(cut_at)
        loads[0].wait_for_answer(back_at)
    during, answer = loads[-1].between(cut_at, used_at), stream.whole()
    outcome = CutOutcome(
        link, seconds, answered - cut_at, max(ended - began for began, ended, _ in during),
        sum(not whole for _, _, whole in during), len(during), stream.pause, used_at - back_at,
    )  # fmt: skip
    print(outcome)
    return outcome, answer
