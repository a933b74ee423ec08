# SPDX-License-Identifier: Apache-2.0
"""Figures of each class of requests. Those on /metrics name no key: whoever has a key of any client may read them. What
each key has of a class is for operators."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import GaugeMetricFamily

from pontil.runtime.foundation.fair_share import ServiceClass
from pontil.runtime.proxy.requests.request import Request

# Adapters with series of their own; those that come later, with other names, are counted together.
MOST_ADAPTERS, OTHERS = 256, "(others)"
# Keys with a class that are remembered: those that sent requests last.
MOST_KEYS = 1024


@dataclass(slots=True)
class KeyService:
    """The requests of a key in one class that have ended, and their tokens; `share` is the last that the key had. Of
    those in flight `running` have their first token."""

    share: float
    requests: int = 0
    tokens: int = 0
    running: int = 0
    waiting: int = 0


class AdapterMetrics:
    """The requests of each adapter that have ended, and their tokens, those of prompts and answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "pontil_adapter_requests", "Requests that ended, by their adapter", ["adapter"], registry=registry
        )
        self.tokens = Counter(
            "pontil_adapter_tokens", "Tokens of their prompts and answers, by adapter", ["adapter"], registry=registry
        )
        self.names: set[str] = set()

    def add(self, name: str, tokens: int) -> None:
        if len(self.names) < MOST_ADAPTERS:
            self.names.add(name)
        label = name if name in self.names else OTHERS
        self.requests.labels(label).inc()
        self.tokens.labels(label).inc(tokens)


class ClassMetrics:
    """The requests of each class that have ended, and their tokens, prompts' and answers'; also by key."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "pontil_class_requests", "Requests that ended, by their class", ["class"], registry=registry
        )
        self.tokens = Counter(
            "pontil_class_tokens", "Tokens of their prompts and answers, by class", ["class"], registry=registry
        )
        self.by_key: dict[tuple[str, str], KeyService] = {}
        self.adapters = AdapterMetrics(registry)
        for each in ServiceClass:
            self.requests.labels(each.word)
            self.tokens.labels(each.word)

    def add(self, request: Request, tokens: int) -> None:
        ticket = request.ticket
        key = ticket.caller, ticket.service_class.word
        self.requests.labels(key[1]).inc()
        self.tokens.labels(key[1]).inc(tokens)
        if ticket.adapter is not None:
            self.adapters.add(ticket.adapter.name, tokens)
        service = self.by_key[key] = self.by_key.pop(key, KeyService(ticket.weight))
        service.share, service.requests, service.tokens = ticket.weight, service.requests + 1, service.tokens + tokens
        while len(self.by_key) > MOST_KEYS:
            del self.by_key[next(iter(self.by_key))]

    def key_rows(self, requests: Iterable[Request]) -> list[dict[str, Any]]:
        """Return a row for each key and class: those with requests in flight first, then those whose ended last."""
        rows: dict[tuple[str, str], KeyService] = {}
        for request in requests:
            if request.is_clients:
                ticket = request.ticket
                key = ticket.caller, ticket.service_class.word
                if key not in rows:
                    rows[key] = replace(self.by_key.get(key, KeyService(ticket.weight)), running=0, waiting=0)
                rows[key].running += request.times.begun
                rows[key].waiting += not request.times.begun
        all_rows = rows | {key: service for key, service in reversed(self.by_key.items()) if key not in rows}
        return [{"key": name, "class": word} | asdict(service) for (name, word), service in all_rows.items()]

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
