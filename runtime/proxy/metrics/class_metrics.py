# SPDX-License-Identifier: Apache-2.0
"""Figures of each class of requests. They name no key: whoever has a key of any client may read them."""

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import GaugeMetricFamily

from pontil.runtime.foundation.fair_share import ServiceClass
from pontil.runtime.proxy.requests.request import Request


class ClassMetrics:
    """The requests of each class that have ended, and their tokens, prompts' and answers'."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "pontil_class_requests", "Requests that ended, by their class", ["class"], registry=registry
        )
        self.tokens = Counter(
            "pontil_class_tokens", "Tokens of their prompts and answers, by class", ["class"], registry=registry
        )
        for each in ServiceClass:
            self.requests.labels(each.word)
            self.tokens.labels(each.word)

    def add(self, request: Request, tokens: int) -> None:
        word = request.ticket.service_class.word
        self.requests.labels(word).inc()
        self.tokens.labels(word).inc(tokens)

    @staticmethod
    def open_rows(requests: Iterable[Request]) -> list[dict[str, Any]]:
        """Return how many of the requests in flight of each class have their first token, and how many wait for it."""
        open_requests = [request for request in requests if request.is_clients]
        rows = []
        for each in ServiceClass:
            begun_flags = [request.times.begun for request in open_requests if request.ticket.service_class is each]
            running = sum(begun_flags)
            rows.append({"class": each.word, "running": running, "waiting": len(begun_flags) - running})
        return rows


def class_gauges(requests: Iterable[Request]) -> Iterator[Metric]:
    """Yield the series on requests in flight by class."""
    family = GaugeMetricFamily(
        "pontil_class_requests_waiting",
        "Requests in flight that wait for their first token, by class",
        labels=["class"],
    )
    for row in ClassMetrics.open_rows(requests):
        family.add_metric([row["class"]], row["waiting"])
    yield family
