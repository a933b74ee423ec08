# SPDX-License-Identifier: Apache-2.0
"""One load on one planned site: when each request's tokens come, and how busy the site is meanwhile."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pontil.runtime.errors import PontilError
from pontil.runtime.planner.planned_clients import PlannedClients
from pontil.runtime.planner.planned_site import PlannedSite
from pontil.runtime.planner.planned_worker import PlannedWorker
from pontil.runtime.proxy.requests.answer import Delta
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import NO_KEY, UNLIMITED, Allowance, Ticket
from pontil.runtime.sampling_params import SamplingParams

# Seconds from a client to the proxy, and back.
WAY = 0.1e-3
MS = 1e-3
# Virtual seconds without any request's end, after which those that are left have failed.
SILENCE = 600.0
UNENDED = f"it had no answer within {SILENCE:.0f} s"
# Prompt and tokens of its answer.
Asked = tuple[list[int], int]
# The name of a key, and what it allows.
Tenant = tuple[str, Allowance]


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """So many requests: of `concurrency` streams, each of which asks again when it has its answer, or `rate` a second
    at the moments of a Poisson process of this seed."""

    requests: int
    concurrency: int = 1
    rate: float | None = None
    seed: int = 0
    # The role of which a worker dies when half of the requests were sent.
    kills: str | None = None
    # The keys of the requests, one after the other.
    tenants: tuple[Tenant, ...] = ((NO_KEY, UNLIMITED),)


@dataclass(slots=True)
class PlannedRequest:
    """One request: when it was sent, and the times of the events with its tokens, in seconds from the first request,
    and whose it is. It has failed until it ends otherwise."""

    sent: float
    prompt_tokens: int
    caller: str = NO_KEY
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0
    cached_tokens: int = 0
    failure: str | None = UNENDED


@dataclass(frozen=True, slots=True)
class TrialReport:
    """The outcome of a trial, which took `seconds`. By the workers' labels: the share of these in which they computed,
    and the most of a worker's blocks that were owned."""

    requests: list[PlannedRequest]
    seconds: float
    busy: dict[str, float]
    blocks: dict[str, float]


class PlannedTrial:
    """One load on a site."""

    def __init__(self, site: PlannedSite, load: PlannedLoad, questions: Iterator[Asked]) -> None:
        self.site, self.world, self.load, self.questions = site, site.world, load, questions
        host = self.host = site.model.profile.host
        self.heard_at = -1.0
        self.clients = PlannedClients(site.cores, host if site.model.has_clients else None)
        self.made = list[PlannedRequest]()
        self.began = self.ended_at = 0.0
        self.left = self.running = load.requests

    def run(self) -> TrialReport:
        self.site.begin()
        self.began = self.ended_at = self.world.now()
        if self.load.rate is None:
            for _ in range(min(self.load.concurrency, self.load.requests)):
                self.send_next()
        else:
            self.send_at_moments(self.load.rate)
        self.world.run(lambda: not self.running or self.world.time > self.ended_at + SILENCE)
        return self.report()

    def send_at_moments(self, rate: float) -> None:
        """Send all requests as `pontil bench` does with this seed."""
        chance, due = random.Random(self.load.seed), self.began
        for _ in range(self.load.requests):
            self.world.at(due, self.send_next)
            due += chance.expovariate(rate)

    def send_next(self) -> None:
        if self.left:
            self.left -= 1
            if self.load.kills is not None and self.left == self.load.requests // 2:
                self.site.kill(self.load.kills)
            prompt, tokens = next(self.questions)
            begun, leaves = self.clients.send(self.world.now(), len(prompt))
            caller, allowance = self.load.tenants[len(self.made) % len(self.load.tenants)]
            times = PlannedRequest(begun - self.began, len(prompt), caller)
            ticket = Ticket(caller=caller, allowance=allowance, place=allowance.service_class.place())
            self.made.append(times)
            self.ended_at = max(self.ended_at, self.world.time)
            self.world.at(leaves + WAY, self.site.proxy.call, self.ask, ticket, times, prompt, tokens)

    def ask(self, ticket: Ticket, times: PlannedRequest, prompt: Sequence[int], tokens: int) -> None:
        """Ask the proxy, in its event loop, as its HTTP routes do."""
        self.site.serve((self.host.proxy_request + self.host.proxy_token * len(prompt)) * MS)
        params = SamplingParams(max_tokens=tokens, seed=len(self.made), temperature=0.0, ignore_eos=True)
        try:
            stream = self.site.proxy.proxy.submit(ticket, Generation(list(prompt), params))
        except PontilError as error:
            self.end(times, str(error))
            return
        stream.listen(lambda: self.hear(times, stream))

    def hear(self, times: PlannedRequest, stream: Stream) -> None:
        """Take the tokens that have come, as one event."""
        count = 0
        for _, event in stream.drain():
            count += len(event.ids) if isinstance(event, Delta) else 0
        if count:
            # All events of a turn come at its beginning, in virtual time.
            is_first, self.heard_at = self.heard_at != self.world.time, self.world.time
            self.site.serve((self.host.proxy_event + (self.host.proxy_turn if is_first else 0.0)) * MS)
            times.arrivals.append(self.clients.hear(self.world.now() + WAY) - self.began)
            times.tokens += count
        if stream.is_over:
            error = stream.error
            times.cached_tokens = stream.usage.cached_tokens
            self.end(times, None if error is None else str(error))

    def end(self, times: PlannedRequest, failure: str | None) -> None:
        times.failure = failure
        self.running -= 1
        self.ended_at = max(self.world.now() + WAY, self.clients.free_at)
        if self.load.rate is None:
            self.world.at(self.ended_at, self.send_next)

    def report(self) -> TrialReport:
        seconds, named = max(self.ended_at - self.began, 1e-9), defaultdict[str, list[PlannedWorker]](list)
        for label, one in zip(self.site.topology.labels, self.site.workers, strict=True):
            named[label].append(one)
        busy: dict[str, float] = {
            label: sum(one.runner.busy for one in some) / len(some) / seconds for label, some in named.items()
        }
        blocks: dict[str, float] = {label: max(one.most_owned for one in some) for label, some in named.items()}
        return TrialReport(self.made, seconds, busy, blocks)
