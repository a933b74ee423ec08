# SPDX-License-Identifier: Apache-2.0
"""The load and the counters of a worker, for its heartbeat."""

from dataclasses import dataclass

from pontil.runtime.engine.prefixes.cache import PrefixCache
from pontil.runtime.worker.generate.adapter_loads import AdapterLoads
from pontil.runtime.worker.generate.decode import DecodeSide
from pontil.runtime.worker.generate.grammar_manager import GrammarManager
from pontil.runtime.worker.generate.prefill import PrefillSide
from pontil.runtime.worker.generate.prefix_leases import PrefixLeases
from pontil.runtime.worker.generate.stage import WorkerStage
from pontil.runtime.worker.links.proxy_link import HeartbeatLoad, ProxyLink
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.process.counters import WorkerCounters
from pontil.runtime.worker.process.request_table import RequestTable
from pontil.runtime.worker.process.worker_request import WorkerRequest
from pontil.runtime.worker.start.assembly import WorkerResources


@dataclass(frozen=True, slots=True)
class LoadGauge:
    machine: WorkerResources
    prefill: PrefillSide
    decode: DecodeSide
    awaited: tuple[GrammarManager, AdapterLoads]
    engine_counters: WorkerCounters
    stage: WorkerStage
    links: ProxyLinks
    requests: RequestTable
    leases: PrefixLeases

    def load(self, link: ProxyLink) -> HeartbeatLoad:
        scheduler, counts = self.machine.scheduler, self.decode.counts
        counters = {
            "handoffs_complete": counts.complete,
            "handoffs_failed": counts.failed,
            "handoffs_cancelled": counts.cancelled,
            "handoffs_expired": self.prefill.expired,
            **self.engine_counters.counters(link.told),
            **self.stage.counters(),
            "kv_transfer_bytes": counts.bytes,
        }
        running = len(scheduler.running) + len(scheduler.parked)
        waiting = (
            len(scheduler.waiting)
            + len(scheduler.queues.paused)
            + self.prefill.halves_that_wait
            + sum(len(one) for one in self.awaited)
        )
        free = self.machine.pool.available
        lost = tuple(self.decode.peers.lost)
        return HeartbeatLoad(running, waiting, free, 0, counters, self.gauges(), self.others(link), lost)

    def gauges(self) -> dict[str, int]:
        return {
            **(self.stage.gauges() or {}),
            **self.machine.scheduler.tier.gauges(),
            **self.leases.gauges(),
            **self.engine_counters.step_times.gauges(),
        }

    def others(self, link: ProxyLink) -> dict[str, int] | None:
        """Return what other proxies have given to this worker; None where there is only one proxy."""
        if self.links.only is not None:
            return None
        self.look()
        others = self.requests.shares.beside(link.proxy)
        return {
            "proxies": self.links.proxies - (link.proxy is not None),
            "in_flight": others.in_flight,
            "taken": others.taken,
            "uncomputed": others.uncomputed,
        }

    def look(self) -> None:
        """Look at the prompts that are being computed, and by turns at the others."""
        shares, scheduler = self.requests.shares, self.machine.scheduler
        running = (shares.open.get(sequence.id) for sequence in scheduler.running)
        open_prompts = [share.request for share in running if share is not None and share.uncomputed]
        for request in [*open_prompts, *shares.next_few()]:
            shares.count(request, uncomputed(request, scheduler.prefix))


def uncomputed(request: WorkerRequest, prefixes: PrefixCache) -> int:
    """Return how many tokens of its prompt are to be computed here: not those that another worker computes, and not
    those that are cached or give way, as its proxy does not count them either."""
    if request.claims or request.submit.phase == "decode" or request.gives_way:
        return 0
    sequence = request.sequence
    return max(0, len(request.submit.prompt) - (sequence.computed or prefixes.expected(sequence)))
