# SPDX-License-Identifier: Apache-2.0
"""The requests per second that a site of the world serves within a limit, where each worker has a device of its own
whose steps take as long as they were measured to take. Routing, queues and handoffs are the product's; no faults."""

import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import copying
import worker_process
from clients import ClientCall, ClientWish
from engine_process import TinyModel
from install import enter
from request_connections import Dialer
from seed_run import MEMORY, WHOLE_WITHIN
from served_proxy import ProxyProcess
from site_plan import CALLERS, SitePlan
from step_profile import StepProfile
from supervised_site import SupervisedSite
from virtual_time import SeededWorld

PROMPT, ANSWER = 256, 64
# Blocks and seats of each worker: memory and batch of a real one.
BLOCKS, SEATS = 2048, 64
# Seconds by which a late message is late, on average: processes of one host.
NEAR = 0.1e-3
# Virtual seconds after the last request in which all have to end.
ENDS_WITHIN = 300.0


@dataclass(frozen=True, slots=True)
class TrialTimes:
    """The outcome of a trial of so many requests: of each that was answered whole the median time between its tokens,
    and the time to the first."""

    requests: int
    between: list[float]
    first: list[float]
    violations: list[str]

    def share(self, between: float, first: float) -> float:
        """Return the share of the requests that keep both limits."""
        pairs = zip(self.between, self.first, strict=True)
        return sum(one <= between and other <= first for one, other in pairs) / self.requests


class TimedCall(ClientCall):
    """A client that notes when each of its tokens came."""

    came: list[float]

    def begin(self) -> None:
        self.came = []
        super().begin()

    def take_events(self, events: Sequence[bytes]) -> None:
        before = self.last.delivered
        super().take_events(events)
        self.came += [self.world.now()] * (self.last.delivered - before)

    @property
    def between(self) -> float:
        """The median time between two of its tokens."""
        return median(later - earlier for earlier, later in zip(self.came, self.came[1:], strict=False))


def site_of(ratio: str) -> SitePlan:
    """Return the plan of P:D workers, of which 0:D are D mixed ones."""
    prefill, decode = map(int, ratio.split(":"))
    mixed = 0 if prefill else decode
    return SitePlan(
        prefill,
        decode if prefill else 0,
        mixed,
        1,
        embed=0,
        rerank=0,
        stages=0,
        blocks=BLOCKS,
        seats=SEATS,
        faults=0,
        changes=0,
        hosts=1,
        tiers=0,
        kept_kv=0,
        keys=0,
        prefill_ranks=1,
        decode_ranks=1,
    )


def use(profile: StepProfile, block_seconds: float) -> None:
    """Have steps and pulls of this process take these times."""
    untyped: Any = worker_process
    untyped.step_seconds = profile.seconds
    untyped = copying
    untyped.BLOCK_SECONDS, untyped.SLOW_SHARES = block_seconds, (0.0,)


class Trial:
    """One site under so many requests at a rate (Poisson). Equal numbers draw equal prompts and pauses."""

    def __init__(self, plan: SitePlan, model: TinyModel, folder: Path, requests: int, seed: int) -> None:
        world = self.world = SeededWorld(seed, None)
        enter(world, folder)
        world.network.jitter, world.network.queues_shorter = NEAR, 1
        self.site = SupervisedSite(world, plan, model, folder)
        self.chance = world.random("goodput")
        self.waiting = requests
        dialer = Dialer(world, self.find_proxy)
        self.calls = [TimedCall(world, self.wish(one), dialer, self.ended, 0.0) for one in range(requests)]

    def find_proxy(self) -> ProxyProcess | None:
        return self.site.proxies[0] if self.site.proxies else None

    def ended(self, call: ClientCall) -> None:
        self.waiting -= 1

    def wish(self, number: int) -> ClientWish:
        prompt = [self.chance.randrange(3, 200) for _ in range(PROMPT)]
        # All are one caller's, so that prompts take turns one by one.
        return ClientWish(number, CALLERS["ann"], prompt, self.chance.getrandbits(31), ANSWER)

    def run(self, rate: float) -> TrialTimes:
        world = self.world
        self.site.begin()
        until = world.time + WHOLE_WITHIN
        world.run(lambda: self.site.is_whole or world.time > until)
        at = world.now() + self.before()
        for call in self.calls:
            world.at(at, call.begin)
            at += self.chance.expovariate(rate)
        world.run(lambda: not self.waiting or world.time > at + ENDS_WITHIN)
        return self.times()

    def before(self) -> float:
        """Begin what is to run beside the requests; return the seconds to the first of them."""
        return 1.0

    def times(self) -> TrialTimes:
        whole = [call for call in self.calls if call.outcome == "done" and len(call.came) == ANSWER]
        first = [call.came[0] - call.began for call in whole]
        return TrialTimes(len(self.calls), [call.between for call in whole], first, list(self.world.violations))


def served(ratio: str, model: TinyModel, rate: float, requests: int, seed: int) -> TrialTimes:
    """Run one trial."""
    with quiet_folder() as folder:
        return Trial(site_of(ratio), model, folder, requests, seed).run(rate)


@contextmanager
def quiet_folder() -> Iterator[Path]:
    """A folder for a trial, of which nothing is logged."""
    logging.disable(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="pontil-goodput-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
