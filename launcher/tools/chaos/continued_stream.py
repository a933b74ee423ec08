# SPDX-License-Identifier: Apache-2.0
"""A stream that is asked for with pontil-resume, and again by Last-Event-ID whenever its connection breaks."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from pontil.launcher.tools.bench.http_client import HttpClient
from pontil.launcher.tools.bench.stream_client import ConnectionBroke, RequestFailed, RequestRefused, events
from pontil.launcher.tools.chaos.chaos_answer import ChaosAnswer

ASKED, CONTINUED, STREAM = "pontil-resume", "Last-Event-ID", "x-pontil-stream"
# Seconds between two requests for the rest of a stream, and the longest time from a break to the next event.
AGAIN_EVERY, CONTINUED_WITHIN = 0.1, 60.0
# Refusals of a moment: another reader is not known to be gone, or there is no room.
LATER = (409, 429, 503)


class ContinuedStream:
    """One streamed request. `last` is the id of the last event that came whole, or at first the stream's own; `broken`
    the time of a break after which no event came yet."""

    def __init__(self, client: HttpClient, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self.client, self.path, self.body, self.headers = client, path, body, headers
        self.last: str | None = None
        self.coming: str | None = None
        self.ids: set[str] = set()
        self.broken: float | None = None
        self.now: Callable[[], float] = time.monotonic

    async def read(self, answer: ChaosAnswer, offset: float) -> None:
        """Add all events to an answer, their times moved by an offset. Raises RequestFailed; ConnectionBroke and
        RequestRefused only if the head of the stream has not come, so that there is nothing to continue."""
        while True:
            try:
                await self.read_once(answer, offset)
                return
            except RequestRefused as error:
                if self.last is None:
                    raise
                if error.status not in LATER:
                    raise RequestFailed(f"its stream was not continued: {error}") from None
                failure: RequestFailed = error
            except ConnectionBroke as error:
                if self.last is None:
                    raise
                failure = error
            self.broken = self.now() if self.broken is None else self.broken
            if self.now() - self.broken > CONTINUED_WITHIN:
                raise RequestFailed(f"its stream was not continued within {CONTINUED_WITHIN:.0f} s: {failure}")
            await asyncio.sleep(AGAIN_EVERY)

    async def read_once(self, answer: ChaosAnswer, offset: float) -> None:
        """Read up to the end or to a break. An id counts once its event came whole."""
        extra_headers = {ASKED: "1"} if self.last is None else {CONTINUED: self.last}
        async with self.client.post(self.path, self.body, {**self.headers, **extra_headers}) as response:
            answer.continued += self.last is not None
            self.last = self.last or response.headers.get(STREAM)
            self.coming = None
            async for at, event in events(response, self.note):
                if self.coming is not None:
                    answer.repeated = self.coming if self.coming in self.ids else answer.repeated
                    self.ids.add(self.coming)
                    self.last, self.coming = self.coming, None
                answer.take(event, at + offset)
                self.broken = None

    def note(self, name: str) -> None:
        self.coming = name
