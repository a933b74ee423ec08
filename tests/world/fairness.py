# SPDX-License-Identifier: Apache-2.0
"""Work conservation, watched in virtual time: no worker that generates is idle while a request waits that it could
take."""

from collections.abc import Iterator

from engine_process import EngineProcess
from served_proxy import ProxyProcess
from supervised_site import SupervisedSite
from virtual_time import SeededWorld

# Seconds between two looks, and after which a request that waits beside an idle worker waits too long.
LOOK, IDLE_WITHIN = 0.25, 2.0


class IdleWorkers:
    """Looks for requests that wait in a proxy beside a worker that has none, as long as both run. `since` has the time
    from which each pair was seen at every look."""

    def __init__(self, world: SeededWorld, site: SupervisedSite) -> None:
        self.world, self.site = world, site
        self.since: dict[tuple[str, str], float] = {}
        self.told: set[tuple[str, str]] = set()

    def look(self) -> None:
        now = self.world.now()
        self.since = {pair: self.since.get(pair, now) for pair in self.pairs()}
        for pair, began in self.since.items():
            if now - began > IDLE_WITHIN and pair not in self.told:
                self.told.add(pair)
                self.world.violate(f"no_worker_is_idle_beside_a_queue: {pair[0]} waits beside {pair[1]}")
        self.world.after(LOOK, self.look)

    def pairs(self) -> Iterator[tuple[str, str]]:
        for process in self.site.proxies:
            if process.stopped_at is None:
                for request, worker in waiting_beside_idle(process, self.site.workers):
                    yield f"{request} in {process}", repr(worker)


def waiting_beside_idle(process: ProxyProcess, workers: list[EngineProcess]) -> Iterator[tuple[str, EngineProcess]]:
    """Yield the requests that a proxy may serve next, each with the workers that do nothing and could take it."""
    assert process.proxy is not None
    heads = [one for group in process.proxy.admissions.by_group.values() for one in group.queue.heads()]
    for request in heads:
        known = process.proxy.registry.generating.serving(request.release)
        usable = {one.hello.name for one in known if not one.leaving and one.role != "prefill"}
        for one in workers:
            worker = one.worker
            if one.stopped_at is None and worker and not worker.requests and one.name in usable:
                yield request.id, one
