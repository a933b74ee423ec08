# SPDX-License-Identifier: Apache-2.0
"""One seed from its first event to its checks."""

import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import checks
from adapter_clients import AdapterClients, with_adapters
from batch_clients import BatchClient
from classed_keys import classed
from client_habits import with_habits
from clients import ClientCall, ClientWish
from conversations import next_turn, with_conversations
from embeddings import with_embeddings
from engine_process import TinyModel
from fairness import IdleWorkers
from faults import POWER_CUT, FaultMaker, planned, planned_changes
from followed_leases import followed_leases, with_followed
from gates import BEFORE, GateOperator
from greedy_tenants import tenanted, tenants_wishes
from hostile_clients import HostileCrowd
from install import REAL, enter
from kept_turns import KeptTurns
from lease_clients import LeaseClients
from link_faults import SeedFault
from load import LoadShape, shaped, wishes
from receipt_clients import ReceiptClients
from recording import SeedRecorder
from request_connections import Dialer
from scored_pairs import with_pairs
from served_proxy import ProxyProcess
from site_plan import SHORT_WINDOW, SitePlan
from sounds import with_sounds
from strangers import Strangers
from supervised_site import SupervisedSite
from unsynced import UnsyncedWrites
from virtual_time import SeededWorld
from watching import SeedWatch

from pontil.runtime.wire.simulated.virtual_time import TraceWriter

# Seconds that a launch has to become whole, at its begin and after the last fault.
WHOLE_WITHIN = 30.0
# Seconds in which a process that begins to serve has met the others.
JOINS_WITHIN = 2.0
# Seconds after the last fault and the last answer at which nothing may be left.
SETTLED_AFTER = 2.0
# Virtual seconds after which a seed is ended in any case.
LONGEST = 400.0
# Share of seeds whose sockets have queues that are so many times as short: who reads nothing for a while fills them.
SHORT_QUEUES, SHORTER = 0.15, (1024, 4096)
# A folder in memory, for the files that proxies share.
MEMORY = Path("/dev/shm")


@dataclass(slots=True)
class SeedReport:
    """The outcome of a seed. `cpu` is its processor time; `loaded` the part from the first request to the last
    answer."""

    seed: int
    trace: str
    requests: int
    tokens: int
    seconds: float
    cpu: float
    loaded: float
    steps: int
    violations: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)


class SeedRun:
    """The world of one seed with its launch, clients and faults."""

    def __init__(
        self, seed: int, plan: SitePlan, model: TinyModel, folder: Path, trace: TraceWriter | None,
        most_faults: int | None,
    ) -> None:  # fmt: skip
        world = self.world = SeededWorld(seed, trace)
        plan, shape = shaped(plan.of_seed(seed), world.random("shape"))
        plan, shape = tenanted(plan, shape, world.random("tenants"))
        plan = classed(plan, world.random("classes"))
        self.folder, self.model = folder, model
        plan = self.plan = with_followed(plan.drawn(world.random("site")), world.random("followed"))
        plan = self.plan = with_adapters(plan, world.random("adapters/plan"), model)
        enter(world, folder)
        world.unnoted = plan.adapter_folder.encode()
        world.network.jitter = shape.jitter
        queues = world.random("queues")
        is_short = queues.random() < SHORT_QUEUES
        world.network.queues_shorter = queues.choice(SHORTER) if is_short else 1
        self.site = SupervisedSite(world, plan, model, folder)
        if isinstance(trace, SeedRecorder):
            trace.begin(world, lambda: self.site.proxies)
        self.calls: list[ClientCall] = []
        self.dialer = Dialer(world, self.find_proxy)
        self.hostile = HostileCrowd(world, self.dialer, self.joined, self.ended)
        self.batch = BatchClient(world, self.dialer, self.ended)
        self.receipts = ReceiptClients(world, self.dialer, self.ended)
        self.adapters = AdapterClients(world, self.dialer, self.ended, plan, model.config)
        self.gate = GateOperator(world, self.dialer, self.site, self.ended) if plan.gates > 0 else None
        self.waiting = 0
        # Processor time when the first request is made, and from then to the last answer.
        self.asked_at = self.loaded = 0.0
        self.made = FaultMaker(world, self.site)
        followed = followed_leases(world, self.dialer, self.site, self.made, self.ended)
        self.kept = KeptTurns(world, self.dialer, plan.kept, self.ended)
        self.leases = LeaseClients(world, self.dialer, self.ended, followed)
        self.watch = SeedWatch(self)
        self.wishes = self.wished(shape)
        seconds = shape.faults_within * self.wishes[-1][0] if self.wishes else 1.0
        drawn = planned(plan, world.random("faults"), seconds)
        drawn += planned_changes(plan, world.random("changes"), seconds)
        self.faults: Sequence[SeedFault] = sorted(drawn, key=lambda fault: fault.at)[:most_faults]
        if any(fault.kind == POWER_CUT for fault in self.faults):
            world.disks.unsynced = UnsyncedWrites(world.random("unsynced"))

    def wished(self, shape: LoadShape) -> list[tuple[float, ClientWish]]:
        """Return the requests, each with the seconds from the first."""
        draw = self.world.random
        if self.plan.tenants:
            return tenants_wishes(self.plan, draw("load"))
        wanted = with_habits(wishes(self.plan, shape, draw("load")), draw("habits"))
        wanted = with_conversations(wanted, draw("conversations"), self.model.tokenizer)
        if self.plan.embed > 0:
            wanted = with_embeddings(wanted, draw("embeddings"), self.model.tokenizer)
        if self.plan.rerank > 0:
            wanted = with_pairs(wanted, draw("pairs"), self.model.tokenizer)
        if self.plan.staged is not None:
            wanted = with_sounds(wanted, draw("sounds"), self.model.tokenizer, self.plan.staged)
        return wanted

    def find_proxy(self) -> ProxyProcess | None:
        """Return the proxy that the kernel gives a new connection, if one listens."""
        proxies = self.site.proxies
        return self.world.random("listener").choice(proxies) if proxies else None

    def streams(self) -> list[str]:
        """Return the ids of all streams that can be continued."""
        return [one.stream for call in self.calls for one in call.tries if one.stream is not None]

    def joined(self) -> None:
        """Note that there is one more client."""
        self.waiting += 1

    def ended(self) -> None:
        """Note that a client has its outcome."""
        self.waiting -= 1
        self.loaded = REAL.cpu() - self.asked_at

    def call_of(self, wish: ClientWish) -> ClientCall:
        """Make the client of a wish."""
        made = ClientCall(self.world, wish, self.dialer, self.call_ended, self.plan.resume_window)
        self.calls.append(made)
        self.joined()
        return made

    def call_ended(self, call: ClientCall) -> None:
        if (more := next_turn(call, self.model.tokenizer)) is not None:
            self.call_of(more).begin()
        self.ended()
        if call.outcome == "done":
            checks.a_row_is_there_before_its_reply_ends(self, call.wish, call.last.name)

    def run(self) -> None:
        world = self.world
        first = world.now()
        self.site.begin()
        self.run_for(WHOLE_WITHIN, lambda: self.site.is_whole)
        if not self.site.is_whole:
            world.violate("the_service_is_whole_again: it did not even start")
            return
        begin = world.now() + 0.1 + (0.0 if self.gate is None else BEFORE)
        IdleWorkers(world, self.site).look()
        for at, wish in self.wishes:
            world.at(begin + at, self.call_of(wish).begin)
        self.made.plan(list(self.faults), begin)
        self.asked_at = REAL.cpu()
        self.hostile.plan(begin, self.wishes[-1][0] if self.wishes else 1.0, self.streams)
        self.batch.plan(begin, self.wishes[-1][0] if self.wishes else 1.0, self.joined)
        if self.plan.staged is None and not self.plan.tenants:
            self.leases.plan(begin, self.wishes[-1][0] if self.wishes else 1.0, self.joined)
            self.kept.plan(begin, self.wishes[-1][0] if self.wishes else 1.0, self.joined)
            self.receipts.plan(begin, self.wishes[-1][0] if self.wishes else 1.0, self.joined)
            self.adapters.plan_all(begin, self.wishes[-1][0] if self.wishes else 1.0, self.joined)
        if self.gate is not None:
            self.gate.plan(self.made.operators, begin, self.joined)
        if self.plan.keys > 0:
            Strangers(world, self.site).plan(begin, self.wishes[-1][0] if self.wishes else 1.0)
        world.at(begin, self.watch.begin)
        world.run(lambda: (not self.waiting and world.time > self.made.over_at) or world.time > first + LONGEST)
        self.ask_for_pages()
        world.run_until(max(world.time, self.made.over_at) + SETTLED_AFTER)
        self.run_for(WHOLE_WITHIN, lambda: self.site.is_whole)
        # The last of them may have begun to serve just now.
        self.run_for(JOINS_WITHIN, lambda: not any(left for joined in checks.JOINED for left in joined(self)))
        checks.check_all(self)
        if self.plan.resume_window <= SHORT_WINDOW:
            world.run_until(world.time + self.plan.resume_window + SETTLED_AFTER)
            checks.check_all(self, checks.LATE_CHECKS)

    def ask_for_pages(self) -> None:
        """Have the proxies leave their pages of metrics, as they do once somebody scrapes one of them."""
        for process in self.site.proxies:
            if process.proxy is not None and process.proxy.fleet.pages is not None and process.stopped_at is None:
                with process.inside():
                    process.proxy.fleet.pages.ask()

    def run_for(self, seconds: float, is_over: "checks.Condition") -> None:
        until = self.world.time + seconds
        self.world.run(lambda: is_over() or self.world.time > until)


def run_seed(
    seed: int, plan: SitePlan, model: TinyModel, trace: TraceWriter | None = None, most_faults: int | None = None
) -> SeedReport:
    """Run one seed, with the first `most_faults` of its faults."""
    logging.disable(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="pontil-world-", dir=MEMORY if MEMORY.is_dir() else None))
    began = REAL.cpu()
    try:
        run = SeedRun(seed, plan, model, folder, trace, most_faults)
        run.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    world = run.world
    tokens = sum(one.delivered for call in run.calls for one in call.tries)
    return SeedReport(
        seed, world.hash.hexdigest()[:16], len(run.calls), tokens, world.time - 10_000.0, REAL.cpu() - began,
        run.loaded, world.steps, world.violations, [str(fault) for fault in run.faults], list(world.last),
    )  # fmt: skip
