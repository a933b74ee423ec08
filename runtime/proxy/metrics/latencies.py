# SPDX-License-Identifier: Apache-2.0
"""Histograms of request latencies and sizes under vLLM's names.

A token costs one observation, of `next_token`. Everything else is observed once a request, with its id as the exemplar.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.proxy.requests.request import Request

FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
NEXT_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
WHOLE_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600, 1800)
TRANSFER_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
# The limit of OpenMetrics on an exemplar's characters, including the label's own.
EXEMPLAR_CHARACTERS = 128
LABEL = "request_id"


class SingleThreadHistogram(Collector):
    """A histogram without labels, exported like prometheus_client's; `observe` takes no lock: one thread only. Each
    bucket keeps its last exemplar, which is not checked."""

    def __init__(self, name: str, says: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self.name, self.says, self.created = name, says, time.time()
        self.bounds = [*map(float, buckets), float("inf")]
        self.counts = [0] * len(self.bounds)
        self.exemplars: list[tuple[dict[str, str], float, float] | None] = [None] * len(self.bounds)
        self.sum = 0.0
        registry.register(self)

    def observe(self, value: float, exemplar: dict[str, str] | None = None) -> None:
        place = bisect_left(self.bounds, value)
        self.counts[place] += 1
        self.sum += value
        if exemplar is not None:
            self.exemplars[place] = exemplar, value, time.time()

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self.name, self.says)
        names, counts = map(floatToGoString, self.bounds), accumulate(self.counts)
        # The family takes None for a bucket without an exemplar, and does not declare it.
        exemplars = [None if exemplar is None else Exemplar(*exemplar) for exemplar in self.exemplars]
        buckets: list[Any] = list(zip(names, counts, exemplars, strict=True))
        family.add_metric([], buckets, self.sum)
        family.add_sample(f"{self.name}_created", {}, self.created)
        yield family


class Latencies:
    """The latency histograms of one proxy, in its `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, says: str, buckets: Sequence[float]) -> SingleThreadHistogram:
            return SingleThreadHistogram(f"pontil_{name}", says, buckets, registry)

        self.first_token = histogram(
            "time_to_first_token_seconds", "From arrival to the first token", FIRST_TOKEN_SECONDS
        )
        self.next_token = histogram("inter_token_latency_seconds", "Between tokens of one answer", NEXT_TOKEN_SECONDS)
        self.per_token = histogram(
            "request_time_per_output_token_seconds",
            "The time from the first token to the last, for each after the first, of a complete answer",
            NEXT_TOKEN_SECONDS,
        )
        self.whole = histogram(
            "e2e_request_latency_seconds", "From arrival to the last token of a complete answer", WHOLE_SECONDS
        )
        self.dispatch = histogram(
            "request_dispatch_time_seconds",
            "From arrival until workers were first given the request",
            FIRST_TOKEN_SECONDS,
        )
        self.queue = histogram(
            "request_queue_time_seconds",
            "From a worker's receipt of a request until it was scheduled",
            FIRST_TOKEN_SECONDS,
        )
        self.prefill = histogram(
            "request_prefill_time_seconds",
            "From arrival to the first token, less the time in a worker's queue",
            FIRST_TOKEN_SECONDS,
        )
        self.decode = histogram(
            "request_decode_time_seconds", "From the first token to the last of a complete answer", WHOLE_SECONDS
        )
        self.inference = histogram(
            "request_inference_time_seconds",
            "From arrival to the last token, less the time in a worker's queue",
            WHOLE_SECONDS,
        )
        self.transfer = histogram(
            "request_transfer_time_seconds",
            "Seconds in which a decode worker copied and checked a prompt's KV blocks",
            TRANSFER_SECONDS,
        )
        self.prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of one complete answer", TOKENS)
        self.generation_tokens = histogram(
            "request_generation_tokens", "Tokens of one complete answer, over all choices", TOKENS
        )

    def add_request(self, request: Request, billed: Usage) -> None:
        """Observe a request that has ended. Unknown parts of its time are left out (B10)."""
        exemplar, first = exemplar_of(request), request.times.first_token
        if request.reports.pulled.bytes and request.reports.pulled.seconds is not None:
            self.transfer.observe(request.reports.pulled.seconds, exemplar)
        if first is not None and request.times.queued is not None:
            self.queue.observe(request.times.queued, exemplar)
            self.prefill.observe(first - request.times.arrived - request.times.queued, exemplar)
        if first is not None and request.complete:
            self.add_complete(request, billed, first, exemplar)

    def add_complete(self, request: Request, usage: Usage, first: float, exemplar: dict[str, str] | None) -> None:
        last, longest = request.times.last_frame, max(len(answer.ids) for answer in request.answers)
        self.whole.observe(last - request.times.arrived, exemplar)
        self.inference.observe(last - request.times.arrived - (request.times.queued or 0.0), exemplar)
        self.decode.observe(last - first, exemplar)
        if longest > 1:
            self.per_token.observe((last - first) / (longest - 1), exemplar)
        self.prompt_tokens.observe(usage.prompt_tokens, exemplar)
        self.generation_tokens.observe(usage.completion_tokens, exemplar)


def exemplar_of(request: Request) -> dict[str, str] | None:
    """Return the request's name as logs have it; None for a name that is longer than an exemplar may be."""
    return {LABEL: request.id} if len(LABEL) + len(request.id) <= EXEMPLAR_CHARACTERS else None
