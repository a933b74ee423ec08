# SPDX-License-Identifier: Apache-2.0
"""What /metrics shows."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.accounting.ledger import Ledger
from pontil.runtime.accounting.usage_log import UsageLog
from pontil.runtime.proxy.request import Request
from pontil.runtime.proxy.tally import Tally

HANDOFFS = "handoffs_"
# Why an attempt broke: its worker died or went silent, said that it failed, sent what does not fit together, could
# not be reached, or drains and gave the request back.
CAUSES = DIED, SILENT, FAILED, BROKEN, UNREACHABLE, MOVED = (
    "died", "silent", "failed", "broken", "unreachable", "moved",
)  # fmt: skip
RESULTS = ("complete", "failed", "expired", "cancelled")
FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
NEXT_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    """All series of one proxy, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.make_worker_counters(registry)
        self.handoffs = Counter("pontil_handoffs", "Handoffs from prefill to decode", ["result"], registry=registry)
        for result in RESULTS:
            self.handoffs.labels(result)
        self.transferred = Counter("pontil_kv_transfer_bytes", "Bytes of KV blocks pulled", registry=registry)
        self.prompt = Counter("pontil_prompt_tokens", "Prompt tokens of answered requests", registry=registry)
        self.cached = Counter("pontil_cached_tokens", "Prompt tokens that were not computed", registry=registry)
        self.cache_queries = Counter(
            "pontil_prefix_cache_queries", "Prompt tokens looked up in a prefix cache", registry=registry
        )
        self.cache_hits = Counter("pontil_prefix_cache_hits", "Prompt tokens found there", registry=registry)
        self.preemptions = Counter(
            "pontil_preemptions", "Sequences that lost their blocks to an older one", registry=registry
        )
        self.generation = Counter("pontil_generation_tokens", "Tokens generated and delivered", registry=registry)
        self.first_token = Histogram(
            "pontil_time_to_first_token_seconds", "From arrival to the first token", buckets=FIRST_TOKEN_SECONDS,
            registry=registry,
        )  # fmt: skip
        self.queue = Histogram(
            "pontil_request_queue_time_seconds", "From a worker's receipt of a request until it was scheduled",
            buckets=FIRST_TOKEN_SECONDS, registry=registry,
        )  # fmt: skip
        self.prefill = Histogram(
            "pontil_request_prefill_time_seconds", "From arrival to the first token, less the time in a worker's queue",
            buckets=FIRST_TOKEN_SECONDS, registry=registry,
        )  # fmt: skip
        self.next_token = Tally(
            "pontil_inter_token_latency_seconds", "Between tokens of one answer", NEXT_TOKEN_SECONDS, registry
        )
        self.running = Gauge("pontil_requests_running", "Requests in flight", registry=registry)
        self.requests = Counter("pontil_requests", "Requests that ended", ["finish_reason"], registry=registry)
        self.dropped = Counter(
            "pontil_frames_dropped", "Frames from workers that were not used", ["reason"], registry=registry
        )
        for reason in ("stale", "malformed", "broken"):
            self.dropped.labels(reason)
        self.failovers = Counter(
            "pontil_failovers", "Attempts that broke and were followed by another", ["cause"], registry=registry
        )
        for cause in CAUSES:
            self.failovers.labels(cause)
        self.clamped = Counter("pontil_counts_clamped", "Counts above the budget", registry=registry)
        self.disputed = Counter("pontil_counts_disputed", "Counts unlike the ids that arrived", registry=registry)
        self.imbalance = Gauge(
            "pontil_ledger_imbalance", "Tokens generated that were neither delivered nor discarded", registry=registry
        )
        self.log_failures = Gauge("pontil_usage_log_failures", "Writes to the usage log that failed", registry=registry)
        self.log_given_up = Gauge("pontil_usage_log_given_up", "Rows that the usage log never got", registry=registry)
        self.discarded = Gauge(
            "pontil_discarded_tokens", "Tokens generated and not delivered", ["reason"], registry=registry
        )

    def make_worker_counters(self, registry: CollectorRegistry) -> None:
        """Of work that is nobody's answer, and of guesses."""
        self.recomputed = Counter(
            "pontil_recomputed_tokens", "Positions computed again, after preemption or a failed transfer or at leisure",
            registry=registry,
        )  # fmt: skip
        self.drafted = Counter(
            "pontil_spec_decode_num_draft_tokens", "Tokens guessed and verified", ["worker"], registry=registry
        )
        self.accepted = Counter(
            "pontil_spec_decode_num_accepted_tokens", "Guesses that were right", ["worker"], registry=registry
        )
        self.results_dropped = Counter(
            "pontil_results_dropped", "Results for requests that their worker no longer knew", registry=registry
        )

    def add_worker_counters(self, worker: str, grown: Mapping[str, int]) -> None:
        """What a worker's counters grew by. Names that mean nothing here are left out."""
        plain = {
            "draft_tokens": self.drafted.labels(worker),
            "accepted_draft_tokens": self.accepted.labels(worker),
            "kv_transfer_bytes": self.transferred,
            "prefix_cache_queries": self.cache_queries,
            "prefix_cache_hits": self.cache_hits,
            "preemptions": self.preemptions,
            "recomputed_tokens": self.recomputed,
            "results_dropped": self.results_dropped,
        }
        for name, difference in grown.items():
            if name in plain:
                plain[name].inc(difference)
            elif name.startswith(HANDOFFS) and name.removeprefix(HANDOFFS) in RESULTS:
                self.handoffs.labels(name.removeprefix(HANDOFFS)).inc(difference)

    def add_tokens(self, count: int, seconds: float, first: bool) -> None:
        """So many of one answer, so long after what was before them: its arrival, or its last tokens."""
        if first:
            self.first_token.observe(seconds)
        else:
            self.next_token.observe(seconds / count)

    def add_request(self, request: Request, label: str) -> None:
        """It has ended, which `label` says in a word."""
        account = request.account
        self.running.dec()
        self.requests.labels(label).inc()
        if request.queued is not None and request.first_token is not None:
            self.add_queue(request.queued, request.first_token - request.arrived)
        self.clamped.inc(account.clamped)
        if request.complete:
            self.disputed.inc(account.disputed)
        if request.complete or request.begun:
            self.add_usage(request.billed)

    def add_queue(self, queued: float, first_token: float) -> None:
        """Of a request that ended: both in seconds from its arrival (B10)."""
        self.queue.observe(queued)
        self.prefill.observe(first_token - queued)

    def add_usage(self, usage: Usage) -> None:
        self.prompt.inc(usage.prompt_tokens)
        self.cached.inc(usage.cached_tokens)
        self.generation.inc(usage.completion_tokens)

    def show_ledger(self, ledger: Ledger) -> None:
        self.imbalance.set(ledger.imbalance)
        for reason, count in ledger.totals.discarded.items():
            self.discarded.labels(reason).set(count)

    def show_usage_log(self, log: UsageLog | None) -> None:
        if log is not None:
            self.log_failures.set(log.failures)
            self.log_given_up.set(log.given_up)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)
