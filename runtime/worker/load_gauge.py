# SPDX-License-Identifier: Apache-2.0
"""The load and the counters of a worker, for its heartbeat."""

from dataclasses import dataclass

from pontil.runtime.threads import ThreadFailures
from pontil.runtime.wire.sockets import BaseSocket
from pontil.runtime.worker.assembly import WorkerResources
from pontil.runtime.worker.counters import WorkerCounters
from pontil.runtime.worker.decode import DecodeSide
from pontil.runtime.worker.grammar_manager import GrammarManager
from pontil.runtime.worker.open_stage import NoStage
from pontil.runtime.worker.prefill import PrefillSide
from pontil.runtime.worker.proxy_link import HeartbeatLoad
from pontil.runtime.worker.stage_side import StageSide


@dataclass(frozen=True, slots=True)
class LoadGauge:
    machine: WorkerResources
    prefill: PrefillSide
    decode: DecodeSide
    grammars: GrammarManager
    engine_counters: WorkerCounters
    failures: ThreadFailures
    sockets: tuple[BaseSocket, ...]
    stage: StageSide | NoStage

    def load(self, steps: int, stale: int) -> HeartbeatLoad:
        """Return the load after `steps` steps and `stale` messages that were meant for a predecessor."""
        scheduler, counts = self.machine.scheduler, self.decode.counts
        counters = {
            "handoffs_complete": counts.complete,
            "handoffs_failed": counts.failed,
            "handoffs_cancelled": counts.cancelled,
            "handoffs_expired": self.prefill.expired,
            **self.engine_counters.counters(),
            **self.stage.counters(),
            "kv_transfer_bytes": counts.bytes,
            "stale_messages": stale,
            "malformed_frames": sum(socket.malformed for socket in self.sockets),
            **{f"thread_failures_{name}": count for name, count in self.failures.counts().items()},
        }
        running = len(scheduler.running) + len(scheduler.parked)
        waiting = len(scheduler.waiting) + len(self.prefill.halves) + len(self.grammars)
        return HeartbeatLoad(running, waiting, self.machine.pool.available, steps, counters, self.gauges())

    def gauges(self) -> dict[str, int] | None:
        return {**(self.stage.gauges() or {}), **self.machine.scheduler.tier.gauges()} or None
