# SPDX-License-Identifier: Apache-2.0
"""The invariants that are looked at again and again while a seed runs, each one function. `calm` is the seconds since a
fault, a start or a change was last seen to be under way."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lease_clients import Holding, a_leased_block_is_found
from releases import NEXT, is_bound, is_next, waits_for_its_release
from served_proxy import ProxyProcess

from pontil.runtime.engine.sequences.sequence import SequenceState
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.wire.simulated.network import LINK_TIMEOUT
from pontil.runtime.worker.generate.worker import Worker

if TYPE_CHECKING:
    from seed_run import SeedRun

# Seconds between two looks.
LOOK = 0.25
# Seconds in which a proxy that is not stopped lets go of a worker that has died: on its own host, whose supervisor
# tells it, and on another.
LET_GO_WITHIN = 1.1, 1.75
# Seconds in which somebody who waits gets a seat that nobody needs, where nothing is amiss.
SEATED_WITHIN = 2.0


class SeedWatch:
    """The one who looks. `stopped_at` is when each process was last seen stopped, or not yet there; `silent_at` when a
    link of a proxy to a worker that had ended was last seen silent."""

    def __init__(self, run: "SeedRun") -> None:
        self.run, self.world = run, run.world
        self.stopped_at: dict[object, float] = {}
        self.silent_at: dict[tuple[str, str], float] = {}
        self.disturbed_at = run.world.time
        self.disturbances: list[float] = []
        self.seen: set[str] = set()
        # When each lease was seen with each worker.
        self.holdings: dict[tuple[str, str], Holding] = {}
        # Those that each watch looks at now.
        self.serving: list[ProxyProcess] = []
        self.working: list[Worker] = []

    @property
    def calm(self) -> float:
        return self.world.time - self.disturbed_at

    def was_calm(self, since: float, until: float) -> bool:
        """Return whether nothing was amiss from a while before a time until another."""
        return not any(since - SEATED_WITHIN < at < until + LOOK for at in self.disturbances)

    def begin(self) -> None:
        self.look()
        self.world.after(LOOK, self.begin)

    def look(self) -> None:
        now, network = self.world.time, self.world.network
        stopped = [one for one in self.run.site.processes if one.stopped_at is not None or not one.alive]
        for process in stopped:
            self.stopped_at[process] = now
        if stopped or network.unreachable.total() or not self.run.site.is_whole or self.run.made.is_busy:
            self.disturbed_at = now
            self.disturbances.append(now)
        self.serving = [one for one in self.run.site.proxies if one.stopped_at is None]
        self.working = [one.worker for one in self.run.site.workers if one.worker is not None]
        self.run.adapters.history.look(self.run.site)
        for watch in WATCHES:
            for what in watch(self):
                if what not in self.seen:
                    self.seen.add(what)
                    self.world.violate(f"{watch.__name__}: {what}")

    def runs_for(self, process: object) -> float:
        """Return the seconds for which a process was not seen stopped."""
        return self.world.time - self.stopped_at.get(process, 0.0)


def the_dead_are_let_go(watch: SeedWatch) -> Iterator[str]:
    """A proxy knows no worker whose process ended a while ago: nobody waits for it. That a host died shows by its
    silence alone, and behind a silent link so does a death on another host."""
    ended = {one.pid: one for one in watch.world.processes if one.ends is not None}
    for process in watch.serving:
        assert process.proxy is not None
        for worker in process.proxy.registry.workers.values():
            if (gone := ended.get(worker.hello.pid)) is None or gone.ends is None:
                continue
            name, link = worker.hello.name, (process.name, worker.hello.name)
            is_elsewhere = is_next(name) or watch.run.plan.host_of(name)
            if is_elsewhere and watch.world.network.is_silent(*link):
                watch.silent_at[link] = watch.world.time
            latest = gone.ends + LINK_TIMEOUT
            shown = latest if gone.vanished else min(max(gone.ends, watch.silent_at.get(link, 0.0)), latest)
            within = LET_GO_WITHIN[is_elsewhere]
            if min(watch.world.time - shown, watch.runs_for(process)) > within:
                yield f"{process} still knows {worker.hello.name}/{worker.hello.pid}, which has ended"


def seats_are_those_of_requests(watch: SeedWatch) -> Iterator[str]:
    """A proxy counts at each worker the requests that it has sent there, and their choices that have not ended."""
    for process in watch.serving:
        assert process.proxy is not None
        requests = process.proxy.requests.values()
        for worker in process.proxy.registry.workers.values():
            mine = [one for one in requests if any(one_worker is worker for one_worker in one.load.workers)]
            wanted = len(mine), sum(one.load.choices for one in mine)
            counted = worker.in_flight, worker.seat_counts.taken + worker.seat_counts.lent
            if counted != wanted:
                yield f"{process} counts {counted} at {worker.hello.name}: {wanted}"


def others_hear_of_what_is_held(watch: SeedWatch) -> Iterator[str]:
    """A worker tells other proxies of a choice's seat until the choice ends, and no longer; of none of a batch's."""
    for worker in watch.working:
        for key, share in worker.requests.shares.open.items():
            held = sum(len(one.choices) for one in worker.machine.engine.sequences.get(key, ()))
            held = 0 if share.request.gives_way else held
            if share.choices != held and (held or share.request.gives_way):
                yield f"{worker.sockets.config.name} tells of {share.choices} seats of {key}, which has {held}"


def nobody_waits_beside_free_seats(watch: SeedWatch) -> Iterator[str]:
    """No request waits for long while no worker has anything to do, where nothing is amiss. One that is suspended waits
    for its reader."""
    if watch.calm < SEATED_WITHIN or any(one.has_requests for one in watch.run.site.all_workers):
        return
    for process in watch.serving:
        assert process.proxy is not None
        now = process.proxy.clock()
        for request in process.proxy.requests.values():
            if request.id in process.proxy.dispatcher.suspended:
                continue
            waits = not request.attempts.phases and now - request.times.waits_since > SEATED_WITHIN
            may_wait = is_of_next(request) and is_bound(request) and now <= waits_for_its_release(watch.run.site, 0.0)
            if waits and not may_wait:
                yield f"{process} has {request.id} wait, and no worker has anything to do"


def is_of_next(request: Request) -> bool:
    return request.release is not None and request.release.revision == NEXT


def nobody_waits_for_what_is_paused(watch: SeedWatch) -> Iterator[str]:
    """No sequence has a claim on what it does not compute now, for which others would wait."""
    for worker in watch.working:
        for owner in worker.machine.scheduler.prefix.claims.counts:
            if owner.state is SequenceState.PAUSED:
                yield f"{worker.sockets.config.name} has others wait for {owner.id}, which is paused"


def routes_go_by_what_is_so(watch: SeedWatch) -> Iterator[str]:
    """The load by which a proxy chooses among workers is the one that they have."""
    for process in watch.serving:
        assert process.proxy is not None
        for worker in process.proxy.registry.workers.values():
            if (kept := worker.loads.pop(0, None)) is not None and kept != worker.load_with(0):
                yield f"{process} goes by another load of {worker.hello.name} than it has"


WATCHES = (
    the_dead_are_let_go,
    seats_are_those_of_requests,
    others_hear_of_what_is_held,
    nobody_waits_beside_free_seats,
    nobody_waits_for_what_is_paused,
    routes_go_by_what_is_so,
    a_leased_block_is_found,
)
