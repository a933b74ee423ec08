# SPDX-License-Identifier: Apache-2.0
"""Counters of a worker's engine, which a proxy compares with its ledger."""

from pontil.runtime.engine.engine import Engine, Output


class WorkerCounters:
    """The tokens that a worker has reported to proxies. A proxy's ledger begins when the worker registers with it:
    earlier tokens were generated for another proxy. Results that were never reported are in neither."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.generated_before = self.computed_before = self.results_dropped = 0
        self.dropped = (0, 0)

    def drop(self, output: Output) -> None:
        """Drop a result whose request is unknown here (A2): it is not sent, and not counted as if it were."""
        generated, computed = self.dropped
        self.results_dropped += 1
        self.dropped = generated + output.count, computed + (output.sequence.prompt_computed if output.opens else 0)

    def begin(self) -> None:
        """Start counting for another proxy."""
        self.generated_before, self.computed_before = self.told

    @property
    def told(self) -> tuple[int, int]:
        """Return the tokens generated, and the prompt tokens computed for the first time, that were reported to
        proxies."""
        generated, computed = self.dropped
        return self.engine.generated - generated, self.engine.prompt_computed - computed

    def counters(self) -> dict[str, int]:
        """Return the counts under their names in heartbeats."""
        engine, scheduler, (generated, computed) = self.engine, self.engine.scheduler, self.told
        return {
            "prefix_cache_queries": scheduler.prefix.queried,
            "prefix_cache_hits": scheduler.prefix.hit,
            "preemptions": scheduler.preemptions,
            "recomputed_tokens": scheduler.recomputed,
            "drafts": engine.drafts.drafts,
            "draft_tokens": engine.drafted,
            "accepted_draft_tokens": engine.accepted,
            "generated_tokens": generated,
            "generated_before": self.generated_before,
            "prompt_tokens_computed": computed,
            "prompt_tokens_computed_before": self.computed_before,
            "results_dropped": self.results_dropped,
            **scheduler.tier.counters(),
            **{f"accepted_draft_tokens_at_{place}": count for place, count in enumerate(engine.drafts.right_at)},
        }
