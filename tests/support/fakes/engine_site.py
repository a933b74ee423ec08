# SPDX-License-Identifier: Apache-2.0
"""A real proxy over workers with a real scheduler each, in virtual time; the model is a formula."""

import os
from collections.abc import Sequence as Sequential
from dataclasses import dataclass, field

from proxy_configs import bare_config
from seat_world import SeatWorld, formula
from submitting import submit
from virtual_site import BEAT, Clock, VirtualProxy

from pontil.runtime.engine.sequences.sequence import Branch, FinishReason, Sequence, Standing
from pontil.runtime.foundation.fair_share import FairShare
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import Allowance
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import SCHEMA, Cancel, Heartbeat, Hello, Message, Submit
from pontil.runtime.worker.process.worker_request import WorkerRequest, key_of, tokens_frame


@dataclass(eq=False)
class EngineWorker:
    """A worker that makes one step of its engine every `pace` seconds while there is work. It says nothing while it is
    `silent`, and takes nothing either."""

    site: VirtualProxy
    name: str
    seats: int
    pace: float = 0.02
    revision: str | None = None
    budget: int = 64
    silent: bool = False
    stepping: bool = False
    requests: dict[str, WorkerRequest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = SeatWorld(self.seats, 40_000, budget=self.budget)
        self.hello = Hello(
            self.name, SCHEMA, self.name, "mixed", os.getpid(), "cpu", "m", "m", "k", "", 16, 1 << 20, self.seats,
            8192, self.budget, revision=self.revision,
        )  # fmt: skip
        self.say(self.hello)
        self.beat()

    def beat(self) -> None:
        self.say(Heartbeat(self.name, self.site.incarnation, 0, 0, 1 << 20, 0))
        self.site.time.after(BEAT, self.beat)

    def say(self, message: Message) -> None:
        if not self.silent:
            self.site.router.on_messages([message])

    def take(self, message: Message) -> bool:
        if self.silent:
            return False
        if isinstance(message, Submit):
            self.submit(message)
        elif isinstance(message, Cancel):
            key = key_of(message.request_id, message.attempt)
            if self.requests.pop(key, None) is not None:
                self.world.engine.end(key, FinishReason.ABORTED)
        return True

    def submit(self, message: Submit) -> None:
        share = FairShare.stated(message.caller, message.weight, message.priority)
        sequence = Sequence(
            key_of(message.request_id, message.attempt),
            message.prompt,
            SamplingParams.from_wire(message.sampling),
            frozenset(),
            branch=Branch.of(tuple(message.choices)),
            standing=Standing(message.priority, share),
        )
        request = WorkerRequest(message.sender, message.request_id, message.attempt, sequence, message)
        self.requests[request.key] = request
        self.world.engine.add(sequence, request.known)
        self.wake()

    def wake(self) -> None:
        if not self.stepping and self.world.engine.has_work:
            self.stepping = True
            self.site.time.after(self.pace, self.step)

    def step(self) -> None:
        self.stepping = False
        outputs = self.world.engine.step()
        self.world.check()
        for output in outputs:
            if request := self.requests.get(output.sequence.id):
                self.say(tokens_frame(self.name, request, output))
        self.wake()


class EngineSite(VirtualProxy):
    """The proxy; `ask` submits a request whose prompt says who it is."""

    def __init__(self, tokenizer: Tokenizer, fair: bool = True) -> None:
        config = bare_config(model="m", fair_by="key" if fair else "none")
        super().__init__(config, tokenizer, Clock())
        self.made: dict[str, EngineWorker] = {}
        self.asked = 0

    def worker(self, name: str, seats: int, pace: float = 0.02, revision: str | None = None) -> EngineWorker:
        self.made[name] = EngineWorker(self, name, seats, pace, revision)
        return self.made[name]

    def send(self, message: Message) -> bool:
        worker = self.made.get(getattr(message, "receiver", ""))
        return True if worker is None else worker.take(message)

    def ask(
        self, caller: str, n: int = 1, tokens: int = 1, weight: float = 1.0, priority: int = 0, length: int = 5
    ) -> Stream:
        self.asked += 1
        params = SamplingParams(max_tokens=tokens, n=n, seed=1, temperature=1.0, ignore_eos=True)
        prompt = [self.asked % 251, self.asked // 251, *[5] * (length - 2)]
        return submit(self, prompt, params, place=priority, caller=caller, allowance=Allowance(weight))

    def measure(self) -> None:
        """Have a request answered, after which waits are known."""
        self.ask("first", tokens=2)
        self.run(1.0)
        assert self.idle and self.queue.is_measured

    def run(self, seconds: float) -> None:
        self.time.run_until(self.time.now + seconds)


def as_alone(request: Request) -> bool:
    """Return whether every choice has the tokens that it has alone."""
    made: Sequential[list[int]] = [
        [formula(request.prompt, choice, len(request.prompt) + place) for place in range(request.params.max_tokens)]
        for choice in range(request.params.n)
    ]
    return [answer.ids for answer in request.answers] == made
