# SPDX-License-Identifier: Apache-2.0
"""A real proxy over workers of scripted speed, in virtual time: minutes of overload in one second,
deterministically."""

import heapq
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.proxy.proxy import TICK, Proxy
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import SCHEMA, Cancel, Heartbeat, Hello, Message, Progress, Submit, Tokens

BEAT = 0.5
# Interval in seconds between a worker's progress reports on a prompt.
PROGRESS = 0.5


class Clock:
    """Events in the order of their time; simultaneous ones in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = count()

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), event))

    def run_until(self, time: float) -> None:
        while self.events and self.events[0][0] <= time:
            self.now, _, event = heapq.heappop(self.events)
            event()
        self.now = time


class VirtualProxy(Proxy):
    """Proxy whose messages arrive at once."""

    def __init__(self, config: ProxyConfig, tokenizer: Tokenizer, clock: Clock) -> None:
        super().__init__(config, tokenizer, clock)
        self.time = clock
        self.workers: dict[str, VirtualWorker] = {}
        self.beat()

    def send(self, message: Message) -> bool:
        worker = self.workers.get(getattr(message, "receiver", ""))
        if worker is not None:
            worker.take(message)
        return True

    def beat(self) -> None:
        self.tick()
        self.time.after(TICK, self.beat)


@dataclass(eq=False)
class VirtualWorker:
    """Worker that computes one prompt after the other at `speed` tokens a second, and generates a token of each request
    every `pace` seconds. A prompt needs a slot first. A prefill or decode request is treated as a whole one; only the
    sender differs."""

    site: VirtualProxy
    name: str
    seats: int
    speed: float
    pace: float
    waiting: list[Submit] = field(default_factory=list)
    running: dict[str, Submit] = field(default_factory=dict)
    tells_progress: bool = True
    reading: bool = False

    def __post_init__(self) -> None:
        self.site.workers[self.name] = self
        hello = Hello(
            self.name, SCHEMA, self.name, "mixed", os.getpid(), "cpu", "m", "m", "k", "", 16, 1 << 20, self.seats,
            8192, 256,
        )  # fmt: skip
        self.say(hello)
        self.beat()

    def beat(self) -> None:
        self.say(Heartbeat(self.name, self.site.incarnation, len(self.running), len(self.waiting), 1 << 20, 0))
        self.site.time.after(BEAT, self.beat)

    def say(self, message: Message) -> None:
        self.site.router.on_messages([message])

    def take(self, message: Message) -> None:
        if isinstance(message, Submit):
            self.waiting.append(message)
            self.site.time.after(0.0, self.read)
        elif isinstance(message, Cancel):
            self.waiting = [one for one in self.waiting if one.request_id != message.request_id]
            self.running.pop(message.request_id, None)
            self.site.time.after(0.0, self.read)

    def read(self) -> None:
        if self.reading or not self.waiting or len(self.running) >= self.seats:
            return
        submit = self.waiting.pop(0)
        self.running[submit.request_id] = submit
        self.reading = True
        self.read_on(submit, 0)

    def read_on(self, submit: Submit, computed: int) -> None:
        """Compute the next part of a prompt, up to the next progress report."""
        if submit.request_id not in self.running:
            self.reading = False
            self.read()
            return
        if computed and self.tells_progress:
            self.say(Progress(self.name, self.site.incarnation, submit.request_id, submit.attempt, computed))
        rest = len(submit.prompt) - computed
        part = min(rest, max(1, int(self.speed * PROGRESS)))
        done = (lambda: self.answer(submit)) if part == rest else (lambda: self.read_on(submit, computed + part))
        self.site.time.after(part / self.speed, done)

    def answer(self, submit: Submit) -> None:
        self.reading = False
        if submit.request_id in self.running:
            tokens = SamplingParams.from_wire(submit.sampling).max_tokens
            self.site.time.after(self.pace * (tokens - 1), lambda: self.end(submit, tokens))
            self.tell(submit, 0, [10], cached_tokens=0, computed_tokens=len(submit.prompt))
        self.read()

    def end(self, submit: Submit, tokens: int) -> None:
        if self.running.get(submit.request_id) is submit:
            del self.running[submit.request_id]
            self.tell(submit, 1, [10] * (tokens - 1), finish_reason="length", generated_tokens=tokens)
        self.read()

    def tell(self, submit: Submit, index: int, ids: list[int], **said: object) -> None:
        address = self.name, self.site.incarnation, submit.request_id, submit.attempt
        self.say(Tokens(*address, index, ids, prompt_tokens=len(submit.prompt), **said))  # type: ignore[arg-type]
