# SPDX-License-Identifier: Apache-2.0
"""The findings of a look at the streams that nobody owns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.proxy.siblings.stream_record import StreamRecord


@dataclass(slots=True)
class Sweep:
    """The findings among the streams that nobody owns. `orphans` are the requests and tokens of each caller that may
    still be continued; `settled` the names of streams that ended and have their rows. The caller holds the records:
    those whose time is over, `left` by proxies that live or `lost` with theirs, and those that ended and have no
    closed row."""

    orphans: dict[str, tuple[int, int]] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    left: list[StreamRecord] = field(default_factory=list)
    lost: list[StreamRecord] = field(default_factory=list)
    unsettled: list[StreamRecord] = field(default_factory=list)

    def add_orphan(self, about: Mapping[str, Any]) -> None:
        """Count a stream, of which this is the first line of its record."""
        requests, tokens = self.orphans.get(about["caller"], (0, 0))
        most = about["prompt"] + about["params"]["n"] * about["params"]["max_tokens"]
        self.orphans[about["caller"]] = requests + 1, tokens + most
