# SPDX-License-Identifier: Apache-2.0
"""Histograms that cost little to observe: once for every token, and several times for every request."""

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
        exemplars = [None if one is None else Exemplar(*one) for one in self.exemplars]
        buckets: list[Any] = list(zip(names, counts, exemplars, strict=True))
        family.add_metric([], buckets, self.sum)
        family.add_sample(f"{self.name}_created", {}, self.created)
        yield family
