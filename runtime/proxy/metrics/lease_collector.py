# SPDX-License-Identifier: Apache-2.0
"""The Prometheus series of leases on prefixes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pontil.runtime.accounting.ledger import LeaseTotals

KINDS = ("granted", "held", "released", "refunded")


class LeaseSums(Protocol):
    """The leases of a fleet, as one proxy knows them."""

    @property
    def held(self) -> tuple[int, int]:
        """The leases that this proxy bills and that are held, and their bytes."""

    def amounts(self) -> LeaseTotals:
        """Return what became of the byte-seconds that this proxy bills."""

    @property
    def refusals(self) -> int:
        """The leases that it refused for want of room."""


@dataclass(frozen=True, slots=True)
class LeaseCollector:
    """A collector of the leases that one proxy bills: each of them is counted by one. `held` byte-seconds go on while
    leases stand; a part of what was granted is held later."""

    leases: LeaseSums

    def collect(self) -> Iterator[Metric]:
        count, size = self.leases.held
        yield GaugeMetricFamily("pontil_leases", "Leases on prefixes that are held", value=count)
        yield GaugeMetricFamily("pontil_leased_bytes", "Bytes of KV that leases hold, shared ones for each", value=size)
        yield CounterMetricFamily(
            "pontil_leases_refused", "Leases that were refused for want of room", value=self.leases.refusals
        )
        amounts = self.leases.amounts()
        family = CounterMetricFamily(
            "pontil_lease_byte_seconds", "Byte-seconds of leases, by what became of them", labels=["kind"]
        )
        for kind in KINDS:
            family.add_metric([kind], getattr(amounts, kind))
        yield family
