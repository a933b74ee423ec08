# SPDX-License-Identifier: Apache-2.0
"""The Prometheus series of what the load needs, and of how wrong the prediction for it is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily


class LoadFigures(Protocol):
    """The load of the workers that generate, as one proxy knows it."""

    def wanted(self) -> Mapping[str, int]:
        """Return how many workers of each role the load needs."""

    @property
    def errors(self) -> Mapping[str, float]:
        """The mean errors of predicted times, as a part of the measured ones."""

    @property
    def factors(self) -> Mapping[tuple[str, str], float]:
        """The measured times over those of the profile, by role and time."""

    @property
    def paces(self) -> Mapping[tuple[str, str], float]:
        """The times as long as the fastest that each worker takes, by its name and the work."""


@dataclass(frozen=True, slots=True)
class LoadCollector:
    """A collector of them. Without a profile nothing is predicted."""

    load: LoadFigures

    def collect(self) -> Iterator[Metric]:
        wanted = GaugeMetricFamily("pontil_workers_wanted", "Workers of a role that the load needs", labels=["role"])
        for role, count in self.load.wanted().items():
            wanted.add_metric([role], count)
        yield wanted
        error = GaugeMetricFamily(
            "pontil_planner_error", "Mean error of predicted times, as a part of the measured ones", labels=["time"]
        )
        for time, mean in self.load.errors.items():
            error.add_metric([time], mean)
        yield error
        slowdown = GaugeMetricFamily(
            "pontil_planner_slowdown", "Measured times over those of the profile", labels=["role", "time"]
        )
        for (role, time), factor in self.load.factors.items():
            slowdown.add_metric([role, time], factor)
        yield slowdown
        paces = GaugeMetricFamily(
            "pontil_worker_pace", "Times as long as the fastest worker takes", labels=["worker", "work"]
        )
        for (worker, work), times in self.load.paces.items():
            paces.add_metric([worker, work], times)
        yield paces
