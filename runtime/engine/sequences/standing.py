# SPDX-License-Identifier: Apache-2.0
"""The order of sequences that want the same seats and blocks."""

from dataclasses import dataclass

from pontil.runtime.foundation.fair_share import EVERYBODY, FairShare


@dataclass(slots=True)
class Standing:
    """A sequence's claim to seats and blocks beside others: the lowest `priority` comes first, then callers by what
    they hold for their `share`, then the earliest `arrival`, which is numbered from 1."""

    priority: int = 0
    share: FairShare = EVERYBODY
    arrival: int = 0

    @property
    def has_arrived(self) -> bool:
        return self.arrival > 0
