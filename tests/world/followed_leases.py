# SPDX-License-Identifier: Apache-2.0
"""A lease that follows its prompt, in a share of the seeds: its client asks for several long prompts behind it at once,
again and again while faults happen, so that its worker is full and others compute it. Whatever happens to processes and
words, one worker has it when all is over, every proxy says so, and it was billed once."""

import json
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from disks import KV
from http_reader import HttpReader
from lease_clients import LOOK, MOST_LEASES, NAME, Hit, LeaseClient, completion_of, found_by, request_of
from link_faults import SeedFault
from request_connections import AnswerTaker, Dialer, PendingAnswer
from site_plan import SitePlan
from virtual_time import SeededWorld

from pontil.runtime.cache.leases.lease import REFUNDED, RELEASED
from pontil.runtime.cache.leases.lease_book import LOST
from pontil.runtime.proxy.routing.policy import AHEAD_STEPS
from pontil.runtime.wire.lease_messages import DRAINS

if TYPE_CHECKING:
    from engine_process import EngineProcess
    from faults import FaultMaker
    from seed_run import SeedRun
    from supervised_site import SupervisedSite

# Share of seeds with such a lease, and of those whose workers' pools are so small that a rush washes them; and the
# number of its client.
SHARE, WASHED, FEW_BLOCKS, NUMBER = 1.0, 0.6, 96, MOST_LEASES
# Its seconds: longer than a seed lasts.
HOLDS_FOR = 3600
# The rushes that are answered, the seconds in which they come, the prompts of one, and the most seconds between two.
RUSHES, RUSHES_WITHIN, PROMPTS, PAUSE = (6, 12), 15.0, (4, 7), 0.3
# Tokens of all prompts of a rush behind the lease, in parts of what one worker is given at once.
CROWD = (1.5, 2.5)
# Share of rushes during which something befalls its worker, within so many seconds; what, and for how long.
BEFALLS, BEFALLS_WITHIN = 0.15, 0.1
KINDS = {"kill": 0.0, "stop": 0.3, "cut": 0.0, "silence": 0.5, "drain": 1.0}
# Share of leases that are extended, and of answers at which they are.
EXTENDED, EXTENDS = 0.7, 0.8
# Seconds behind the last fault after which one worker has it.
SETTLED_AFTER = 2.0
# Seconds by which a proxy may hear late of its beginning or its end.
NOTICED_WITHIN = 2.0


class PromptBehind(AnswerTaker):
    """One prompt of a rush."""

    def __init__(self, lease: "FollowedLease", own_tokens: int) -> None:
        self.lease, self.asked_at = lease, lease.world.now()
        self.prompt = [*lease.prompt, *(3 + lease.chance.randrange(200) for _ in range(own_tokens))]
        self.pending: PendingAnswer | None = None

    def begin(self) -> None:
        connection = self.lease.dialer.dial(6000 + NUMBER)
        if connection is None:
            self.disconnected()
            return
        self.lease.asked[len(self.prompt)] += 1
        self.pending = connection.ask(self, request_of(NUMBER, "POST", "/v1/completions", completion_of(self.prompt)))

    # The parts of an AnswerTaker.

    def disconnected(self) -> None:
        self.lease.answered_one(None)

    def answered(self, reader: HttpReader) -> None:
        hit = None if reader.status != 200 else (self.asked_at, self.lease.world.now(), *found_by(reader))
        self.lease.answered_one(hit)


class LeaseExtension(AnswerTaker):
    """A request to keep the lease for longer."""

    def __init__(self, lease: "FollowedLease") -> None:
        self.lease = lease
        self.pending: PendingAnswer | None = None

    def begin(self) -> None:
        connection = self.lease.dialer.dial(6000 + NUMBER)
        if connection is not None:
            self.lease.asked_until = self.lease.world.now() + HOLDS_FOR
            self.pending = connection.ask(self, request_of(NUMBER, "PATCH", self.lease.path, {"ttl": HOLDS_FOR}))

    # The parts of an AnswerTaker.

    def answered(self, reader: HttpReader) -> None:
        if reader.status == 200:
            self.lease.told.append(json.loads(reader.body))


class FollowedLease(LeaseClient):
    """Its client. `asked` counts the prompts that it sent, by their lengths. It `extends` the lease as answers come, or
    never; `told` is what it was told of that, and `asked_until` the latest time for which it asked."""

    def __init__(
        self, world: SeededWorld, dialer: Dialer, site: "SupervisedSite", made: "FaultMaker", ended: Callable[[], None]
    ) -> None:
        super().__init__(world, dialer, NUMBER, ended)
        self.site, self.made, self.seconds = site, made, HOLDS_FOR
        self.rushes, self.waiting = self.chance.randrange(*RUSHES), 0
        self.answers = 0
        self.extends = self.chance.random() < EXTENDED
        self.told: list[dict[str, Any]] = []
        self.asked_until: float | None = None
        self.asked: Counter[int] = Counter()
        self.released_at: float | None = None

    def begin(self) -> None:
        self.asked[len(self.prompt)] += 1
        super().begin()

    def use(self) -> None:
        """Ask for several prompts behind it at once."""
        count = self.chance.randrange(*PROMPTS)
        crowd = AHEAD_STEPS * self.site.plan.batched_tokens * self.chance.uniform(*CROWD)
        made = [PromptBehind(self, int(crowd / count)) for _ in range(count)]
        self.waiting = len(made)
        if self.chance.random() < BEFALLS and self.site.plan.faults:
            self.world.after(self.chance.random() * BEFALLS_WITHIN, self.befall)
        for one in made:
            one.begin()

    def befall(self) -> None:
        """Have something happen to the worker that has it."""
        kinds = [kind for kind in KINDS if kind in (self.site.plan.kinds or KINDS)]
        holders = [one.name for one in self.holders if one.name in self.site.plan.worker_names]
        if holders and kinds:
            kind = self.chance.choice(kinds)
            fault = SeedFault(0.0, kind, holders[0], KINDS[kind], self.chance.random())
            self.made.plan([fault], self.world.now())

    @property
    def holders(self) -> "list[EngineProcess]":
        """The workers that have it."""
        name = (self.granted or {}).get("id")
        return [one for one in self.site.workers if one.worker and name in one.worker.leases.book.leases]

    def answered_one(self, hit: Hit | None) -> None:
        if hit is not None:
            self.hits.append(hit)
            if self.extends and self.chance.random() < EXTENDS:
                LeaseExtension(self).begin()
        self.waiting -= 1
        if not self.waiting:
            self.rushes -= len(self.hits) > self.answers
            self.answers = len(self.hits)
            more = self.rushes > 0 and self.world.now() < self.granted_at + RUSHES_WITHIN
            self.world.after(self.chance.random() * PAUSE, self.use if more else self.settle)

    @property
    def use_after(self) -> float:
        return self.chance.random() * PAUSE

    def settle(self) -> None:
        """Wait until all is over; then see who has it, and release it."""
        if self.world.now() < self.made.over_at + SETTLED_AFTER or not self.site.is_whole:
            self.world.after(LOOK, self.settle)
            return
        for what in one_worker_has_it(self):
            self.world.violate(f"one_worker_has_a_lease: {what}")
        self.has_released, self.released_at = True, self.world.now()
        self.ask("DELETE", self.path, self.looked)

    def looked(self, reader: HttpReader) -> None:
        if self.released_at is None:
            self.settle()
        else:
            super().looked(reader)

    def disconnected(self) -> None:
        if self.granted is not None:
            self.world.after(LOOK, self.settle)
        else:
            super().disconnected()


def one_worker_has_it(lease: FollowedLease) -> Iterator[str]:
    """One worker holds a lease that is not over, and each proxy says that this one does, by as many moves. It is over
    only where its worker ended, or had to drain."""
    name = (lease.granted or {})["id"]
    views = {process.name: process.proxy.leases.views.get(name) for process in lease.site.proxies if process.proxy}
    held = [one.worker for one in lease.holders if one.worker]
    moves = [one.leases.book.leases[name].moves for one in held]
    workers = {one.sockets.config.name: one.sockets.incarnation for one in held}
    told = {proxy: view and (view.worker, view.moves) for proxy, view in views.items()}
    if len(held) > 1 or bool(held) != any(views.values()):
        yield f"{name} is held by {workers}, and proxies say {told}"
    elif held and any(one != (held[0].sockets.incarnation, moves[0]) for one in told.values()):
        yield f"{name} is held by {workers} by {moves} moves, and proxies say {told}"


def a_lease_that_moves_is_billed_once(run: "SeedRun") -> Iterator[str]:
    """Its row has the byte-seconds that its client was told, held for as long as it had it, and the log has no prompt
    that its client did not ask for. It is refunded only where its worker ended, drained, or lost a block of it on a
    full disk."""
    if run.world.disks.lost_rows:
        return
    with closing(sqlite3.connect(run.folder / "usage")) as database:
        for lease in run.leases.clients:
            if not isinstance(lease, FollowedLease) or lease.granted is None:
                continue
            for row in database.execute(LEASE_ROWS, (lease.granted["id"],)):
                yield from (f"{lease.granted['id']} {what}" for what in wrong_in(run, lease, LeaseBill(*row)))
            billed = Counter(tokens for (tokens,) in database.execute(PROMPT_ROWS, (f"{NAME}{NUMBER}",)))
            if more := billed - lease.asked:
                yield f"the log has prompts of {dict(more)} tokens behind a lease that nobody asked for"


class LeaseBill(NamedTuple):
    """The part of a lease's row that is looked at."""

    worker: str
    outcome: str
    reason: str | None
    size: int
    granted: int
    held: int


def wrong_in(run: "SeedRun", lease: FollowedLease, bill: LeaseBill) -> Iterator[str]:
    answers = [lease.granted or {}, *lease.told]
    least = most = max(answer["byte_seconds"]["granted"] for answer in answers)
    if lease.asked_until is not None:
        most = max(most, int(bill.size * (lease.asked_until - lease.granted_at + NOTICED_WITHIN)))
    if bill.granted > most or bill.granted < least and bill.outcome == RELEASED:
        yield f"was granted {least} byte-seconds, and its row has {bill.granted}"
    if bill.outcome == RELEASED and lease.released_at is not None:
        seconds = lease.released_at - lease.granted_at
        if not seconds - NOTICED_WITHIN < bill.held / bill.size < seconds + NOTICED_WITHIN:
            yield f"was held for {seconds:.1f} s, and its row has {bill.held / bill.size:.0f}"
    if bill.outcome == REFUNDED and bill.reason != DRAINS:
        full_at = run.world.disks.without_room.get((bill.worker, KV), -inf)
        if bill.reason == LOST and full_at > lease.granted_at:
            return
        ended = {one.name for one in run.world.processes if one.ends is not None and one.ends > lease.granted_at}
        if not ended & ({bill.worker} if bill.worker else set(run.plan.registered_names)):
            yield f"is refunded, since {bill.reason}, and {bill.worker or 'every worker'} has not ended"


LEASE_ROWS = "SELECT worker, outcome, reason, size, granted, held FROM leases WHERE id = ?"
PROMPT_ROWS = "SELECT prompt_tokens FROM requests WHERE name = ? AND state = 'closed'"


def followed_leases(
    world: SeededWorld, dialer: Dialer, site: "SupervisedSite", made: "FaultMaker", ended: Callable[[], None]
) -> list[FollowedLease]:
    """Return the client of such a lease, if the seed has one."""
    return [FollowedLease(world, dialer, site, made, ended)] if site.plan.follows else []


def with_followed(plan: SitePlan, chance: random.Random) -> SitePlan:
    """Draw whether a seed has such a lease."""
    follows, is_washed = chance.random() < SHARE, chance.random() < WASHED
    if not follows or plan.tenants or plan.staged is not None:
        return plan
    return replace(plan, follows=True, blocks=min(plan.blocks, FEW_BLOCKS) if is_washed else plan.blocks)
