# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of a proxy, as /metrics shows them."""

import logging
from collections.abc import Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.accounting.ledger import Ledger
from pontil.runtime.accounting.usage_log import UsageLog
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.metrics.class_metrics import ClassMetrics
from pontil.runtime.proxy.metrics.heartbeats import HeartbeatCounters
from pontil.runtime.proxy.metrics.latencies import Latencies, exemplar_of
from pontil.runtime.proxy.metrics.lease_collector import LeaseCollector, LeaseSums
from pontil.runtime.proxy.metrics.load_collector import LoadCollector, LoadFigures
from pontil.runtime.proxy.metrics.scrape_collector import ReuseCollector, ScrapeCollector
from pontil.runtime.proxy.requests.prompt_reuse import PromptReuse
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.text_embedding import PairScore, TextEmbedding
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.wire.messages import Message

LOG = logging.getLogger("pontil.proxy")
# Causes of a failed attempt: its worker died or went silent, reported a failure, sent invalid frames, could not be
# reached, or drains and returned the request.
CAUSES = DIED, SILENT, FAILED, BROKEN, UNREACHABLE, MOVED = (
    "died",
    "silent",
    "failed",
    "broken",
    "unreachable",
    "moved",
)
# Causes of a refusal: the wait would be too long, it was too long, or the request exceeded the limits of its key.
REFUSALS = OVERLOAD, TOO_LATE, KEY_LIMIT = "overload", "deadline", "key_limit"
# The finished_reason of a request, in vLLM's words where it has one.
FINISHED = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}
# Causes of a dropped span: too many traces waited, the collector did not take it, or we could not make it.
DROPS = QUEUE_FULL, REFUSED, FAULT = ("queue", "collector", "fault")


class SpanMetrics:
    """Counters of exported and of dropped spans."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.exported = Counter("pontil_spans_exported", "Spans that the collector of traces took", registry=registry)
        self.dropped = Counter(
            "pontil_spans_dropped", "Spans that the collector of traces did not get", ["reason"], registry=registry
        )
        for reason in DROPS:
            self.dropped.labels(reason)

    def took(self, spans: int) -> None:
        self.exported.inc(spans)

    def drop(self, spans: int, reason: str) -> None:
        self.dropped.labels(reason).inc(spans)


class RoutingMetrics:
    """The prompt tokens that were dispatched, and those of them that the chosen worker was thought to have cached."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tokens = Counter(
            "pontil_routing_prompt_tokens", "Prompt tokens that were sent to workers", registry=registry
        )
        self.found = Counter(
            "pontil_routing_found_tokens",
            "Prompt tokens that the chosen worker was expected to have cached",
            registry=registry,
        )

    def add(self, tokens: int, found: int) -> None:
        """Count a prompt that was sent to a worker."""
        self.tokens.inc(tokens)
        self.found.inc(found)


class RunMetrics:
    """The series of one proxy's runs. `audio` counts the seconds that clients were given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge("pontil_runs_running", "Runs of several stages in flight", registry=registry)
        self.audio = Counter("pontil_audio_seconds", "Seconds of audio that stages made for clients", registry=registry)
        self.replays = Counter(
            "pontil_stage_replays", "Stages that were computed again for their items alone", registry=registry
        )
        self.starved = Counter(
            "pontil_stages_starved", "Reports of a stage that items of another are missing", registry=registry
        )


class Metrics:
    """All series of one proxy, in a registry of its own. `delivered` is the number of delivered tokens, `pulled`
    the bytes of KV that ended requests had moved, by the name of their last route."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.latencies = Latencies(self.registry)
        self.delivered = 0
        self.pulled: dict[str, int] = {}
        self.threads = ThreadFailures()
        self.threads_shown: dict[str, int] = {}
        self.make_request_counters(self.registry)
        self.of_workers = HeartbeatCounters(self.registry)
        self.thread_failures = self.of_workers.families["thread_failures_"]
        self.thread_failures.labels("proxy", "usage-log")
        self.make_ledger_gauges(self.registry)
        self.runs = RunMetrics(self.registry)
        self.routing = RoutingMetrics(self.registry)
        self.spans = SpanMetrics(self.registry)
        self.classes = ClassMetrics(self.registry)

    def make_request_counters(self, registry: CollectorRegistry) -> None:
        self.success = Counter(
            "pontil_request_success",
            "Requests that ended, by how their first choice did",
            ["finished_reason"],
            registry=registry,
        )
        self.refused = Counter(
            "pontil_requests_refused",
            "Requests that were let go before their first token, for want of room",
            ["reason"],
            registry=registry,
        )
        self.prompt = Counter("pontil_prompt_tokens", "Prompt tokens of answered requests", registry=registry)
        self.cached = Counter("pontil_prompt_tokens_cached", "Prompt tokens that were not computed", registry=registry)
        self.failovers = Counter(
            "pontil_failovers", "Attempts that broke and were followed by another", ["cause"], registry=registry
        )
        self.dropped = Counter(
            "pontil_frames_dropped", "Frames from workers that were not used", ["reason"], registry=registry
        )
        self.clamped = Counter("pontil_counts_clamped", "Counts above the budget", registry=registry)
        self.disputed = Counter("pontil_counts_disputed", "Counts unlike the ids that arrived", registry=registry)
        self.embeddings = Counter("pontil_embeddings", "Texts that were answered with a vector", registry=registry)
        self.embedded = Counter("pontil_embedding_tokens", "Tokens of these texts", registry=registry)
        self.scores = Counter("pontil_scores", "Pairs of texts that were answered with a score", registry=registry)
        self.scored = Counter("pontil_score_tokens", "Tokens of these pairs", registry=registry)
        self.ended = {label: self.success.labels(reason) for label, reason in FINISHED.items()}
        for cause in CAUSES:
            self.failovers.labels(cause)
        for reason in REFUSALS:
            self.refused.labels(reason)
        for reason in ("stale", "malformed", "broken"):
            self.dropped.labels(reason)

    def make_ledger_gauges(self, registry: CollectorRegistry) -> None:
        self.imbalance = Gauge(
            "pontil_ledger_imbalance", "Tokens generated that were neither delivered nor discarded", registry=registry
        )
        self.discarded = Gauge(
            "pontil_discarded_tokens", "Tokens generated and not delivered", ["reason"], registry=registry
        )
        self.log_failures = Gauge("pontil_usage_log_failures", "Writes to the usage log that failed", registry=registry)
        self.log_waiting = Gauge(
            "pontil_usage_log_waiting_rows", "Rows of the usage log that are not on the disk yet", registry=registry
        )
        self.log_given_up = Gauge("pontil_usage_log_given_up", "Rows that the usage log never got", registry=registry)

    def watch(self, requests: Mapping[str, Request], workers: Registry, about: Mapping[str, str]) -> None:
        """Also show requests in flight, workers and facts about this server. Call once."""
        self.registry.register(ScrapeCollector(requests, workers, lambda: self.delivered, about))

    def add_dispatch(self, request: Request) -> None:
        """Observe the wait of a client's request that is given to workers for the first time."""
        if request.attempts.number == 0 and request.is_clients:
            self.latencies.dispatch.observe(request.attempts.sent - request.times.arrived, exemplar_of(request))

    def drop_malformed(self, message: Message, reason: object) -> None:
        """Count a message that is dropped, since it cannot be true."""
        self.dropped.labels("malformed").inc()
        LOG.debug("dropped a %s from %s: %s", type(message).__name__, message.sender, reason)

    def add_tokens(self, count: int, seconds: float, first: bool, of: Request | None = None) -> None:
        """Observe so many delivered tokens, so long after the arrival, or after the last tokens. The time to the first
        token has the request as its exemplar. Tokens of a run's further stages are counted only."""
        self.delivered += count
        if of is not None and not of.is_clients:
            return
        if first:
            self.latencies.first_token.observe(seconds, None if of is None else exemplar_of(of))
        else:
            self.latencies.next_token.observe(seconds / count)

    def add_request(self, request: Request, billed: Usage, label: str) -> None:
        """Observe a request that has ended; `label` is its cause in one word."""
        account = request.account
        if clamped_count := account.clamped:
            self.clamped.inc(clamped_count)
        if request.complete and (disputed_count := account.disputed):
            self.disputed.inc(disputed_count)
        if not request.is_clients:
            return
        self.ended[label].inc()
        self.classes.add(request, billed.total_tokens)
        self.latencies.add_request(request, billed)
        if pulled_bytes := request.reports.pulled.bytes:
            self.pulled[request.attempts.route_name] = self.pulled.get(request.attempts.route_name, 0) + pulled_bytes
        if isinstance(request.work, TextEmbedding):
            is_pair = isinstance(request.work, PairScore)
            texts, tokens = (self.scores, self.scored) if is_pair else (self.embeddings, self.embedded)
            texts.inc(request.complete)
            tokens.inc(billed.prompt_tokens if request.complete else 0)
        elif request.complete or request.times.begun:
            self.prompt.inc(billed.prompt_tokens)
            self.cached.inc(billed.cached_tokens)

    def watch_leases(self, leases: LeaseSums) -> None:
        """Also show the leases on prefixes. Call once."""
        self.registry.register(LeaseCollector(leases))

    def watch_load(self, load: LoadFigures) -> None:
        """Also show what the load needs, and how wrong its prediction is. Call once."""
        self.registry.register(LoadCollector(load))

    def watch_books(self, ledger: Ledger, log: UsageLog | None, reuse: PromptReuse) -> None:
        """Also show the ledger, the usage log and the reuse of prompts as they are whenever somebody looks. Call
        once."""
        self.registry.register(ReuseCollector(reuse))
        self.imbalance.set_function(lambda: ledger.imbalance)
        for reason in ledger.totals.discarded:
            self.discarded.labels(reason).set_function(partial(ledger.totals.discarded.__getitem__, reason))
        if log is not None:
            self.log_failures.set_function(lambda: log.failures)
            self.log_waiting.set_function(lambda: log.waiting)
            self.log_given_up.set_function(lambda: log.given_up)

    def show_threads(self) -> None:
        """Update the failure counts of the proxy's own threads and tasks."""
        counts = self.threads.counts()
        for name, count in counts.items():
            self.thread_failures.labels("proxy", name).inc(count - self.threads_shown.get(name, 0))
        self.threads_shown = dict(counts)

    def render(self) -> bytes:
        """Return the series in Prometheus' text format."""
        self.show_threads()
        return generate_latest(self.registry)

    def render_openmetrics(self) -> bytes:
        """Return the series as OpenMetrics, which has exemplars."""
        self.show_threads()
        page: bytes = generate_openmetrics(self.registry)
        return page
