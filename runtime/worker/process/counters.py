# SPDX-License-Identifier: Apache-2.0
"""Counters of a worker's engine, which a proxy compares with its ledger, and the times of its steps."""

from pontil.runtime.engine.engine import Engine
from pontil.runtime.worker.links.proxy_link import ToldCounts
from pontil.runtime.worker.process.step_times import MeanStepTimes


class WorkerCounters:
    """The counters of a heartbeat. Results that were never reported are in no proxy's ToldCounts."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.results_dropped = 0
        self.step_times = MeanStepTimes()

    def drop(self) -> None:
        """Drop a result whose request is unknown here (A2): it is not sent, and not counted as if it were."""
        self.results_dropped += 1

    def counters(self, told: ToldCounts) -> dict[str, int]:
        """Return the counts under their names in heartbeats, for the proxy that was `told` so many tokens."""
        engine, scheduler = self.engine, self.engine.scheduler
        return {
            "prefix_cache_queries": scheduler.prefix.queried,
            "prefix_cache_hits": scheduler.prefix.hit,
            "preemptions": scheduler.preemptions,
            "recomputed_tokens": scheduler.recomputed,
            "drafts": engine.drafts.drafts,
            "draft_tokens": engine.drafted,
            "accepted_draft_tokens": engine.accepted,
            # Of all proxies, as steps are.
            "engine_tokens": engine.generated,
            "engine_prompt_tokens": engine.prompt_computed,
            **told.counters(),
            "results_dropped": self.results_dropped,
            **scheduler.tier.counters(),
            **{f"accepted_draft_tokens_at_{place}": count for place, count in enumerate(engine.drafts.right_at)},
        }
