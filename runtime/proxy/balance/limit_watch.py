# SPDX-License-Identifier: Apache-2.0
"""Warnings before a limit is missed: the trend of the load by role."""

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import linear_regression

from pontil.runtime.proxy.balance.balancer import DECODE, PREFILL
from pontil.runtime.proxy.balance.needs import Needs

LOG = logging.getLogger("pontil.proxy")
# Seconds between two samples of a trend, the samples that it has, and those that it needs.
EVERY, KEPT, LEAST = 10.0, 18, 6
# Seconds for which a trend is followed.
AHEAD = 180.0
# Pressures from which on it is worth a warning, and below which the next one is; and the
# most that counts.
MATTERS, OVER, MOST = 0.5, 0.9, 100.0


@dataclass(slots=True)
class Trend:
    """The pressure of a role over the last minutes. It is `warned` of from when the limit would be missed until it no
    longer would."""

    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    warned: bool = False

    def add(self, now: float, pressure: float) -> float | None:
        """Take a sample, of which most are left out; return the seconds until the pressure is above 1, 0 where it is,
        if that is soon and news; else None."""
        if self.samples and now - self.samples[-1][0] < EVERY:
            return None
        self.samples.append((now, min(pressure, MOST)))
        if len(self.samples) < LEAST:
            return None
        line = linear_regression(*zip(*self.samples, strict=True))
        present = line.slope * now + line.intercept
        coming = present + line.slope * AHEAD
        if max(present, coming) < OVER:
            self.warned = False
        if self.warned or present < MATTERS or max(present, coming) <= 1.0:
            return None
        self.warned = True
        return 0.0 if present >= 1.0 else (1.0 - present) / line.slope


@dataclass(slots=True)
class LimitWatch:
    """Warns once each time that a role is about to have more to do than the limits allow, which are milliseconds to
    the first token and for each after it. Without limits it is silent."""

    first_token: float | None
    per_token: float | None
    trends: dict[str, Trend] = field(default_factory=lambda: {PREFILL: Trend(), DECODE: Trend()})

    def look(self, now: float, needs: Needs, counts: Mapping[str, int]) -> None:
        """Take what the load needs of so many workers by role, those of both phases among them."""
        prefill, decode = counts[PREFILL] + counts["mixed"], counts[DECODE] + counts["mixed"]
        if self.first_token is not None:
            told = f"--ttft-limit of {self.first_token:g} ms", "prompts", prefill, needs.wanted_prefill
            self.warn(self.trends[PREFILL].add(now, needs.prefill_pressure(prefill)), *told)
        if self.per_token is not None:
            told = f"--tpot-limit of {self.per_token:g} ms", "answers", decode, needs.wanted_decode
            self.warn(self.trends[DECODE].add(now, needs.decode_pressure(decode)), *told)

    def warn(self, seconds: float | None, limit: str, work: str, present: int, wanted: int) -> None:
        if seconds is not None:
            when = "now" if not seconds else f"in about {max(1, round(seconds / 60))} min, as the load grows"
            LOG.warning("%s is missed %s: %s have %d workers and need %d", limit, when, work, present, wanted)
