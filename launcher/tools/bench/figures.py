# SPDX-License-Identifier: Apache-2.0
"""The figures of a run: percentiles of its requests' times, its rates, and how many requests kept their limits."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pontil.launcher.tools.bench.bench_run import Outcomes
from pontil.launcher.tools.bench.stream_client import Timing

DEFINITIONS = {
    "TTFT": "from sending the request to the first event with a token in it",
    "TPOT": "of one request: from its first token to its last, divided by the tokens after the first",
    "ITL": "from one event of a stream to its next; an event may have several tokens",
    "E2E": "from sending the request to its last token",
    "tokens": "as the server's usage says",
    "output rate": "all answers' tokens over the wall time of the run",
    "failure": "a request that ended without its usage; it counts in no other figure",
    "goodput": "the requests that kept all limits, over the wall time of the run; a failure keeps none",
}
PERCENTILES = (90, 99)

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest times of a request that count as kept, in milliseconds: to its first token, a token on average, and
    the median of its gaps."""

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None

    @property
    def given(self) -> bool:
        return not self.ttft is self.tpot is self.itl is None

    def kept(self, timing: Timing) -> bool:
        gap = statistics.median(timing.gaps or (0.0,))
        pairs = ((self.ttft, timing.ttft), (self.tpot, timing.tpot), (self.itl, gap))
        return all(limit is None or seconds * 1000 <= limit for limit, seconds in pairs)


def figures_of(outcomes: Outcomes, limits: Limits) -> Figures:
    """Return the figures of a run. Without a request that succeeded there are only counts."""
    done = outcomes.timings
    found: Figures = {"requests": len(done), "failures": len(outcomes.failures)}
    if limits.given:
        kept = sum(limits.kept(one) for one in done)
        found["kept_share"] = round(kept / max(1, len(done) + len(outcomes.failures)), 4)
        found["goodput_per_second"] = round(kept / outcomes.wall, 3) if outcomes.wall else 0.0
    if not done:
        return found
    found |= spread("ttft_ms", [one.ttft for one in done])
    found |= spread("tpot_ms", [one.tpot for one in done])
    found |= spread("itl_ms", [gap for one in done for gap in one.gaps] or [0.0])
    found |= spread("e2e_ms", [one.e2e for one in done])
    longest = statistics.median(max(one.gaps, default=0.0) for one in done)
    return found | {
        "longest_gap_ms_median": round(longest * 1000, 1),
        "prompt_tokens": sum(one.prompt_tokens for one in done),
        "output_tokens": sum(one.tokens for one in done),
        "output_tokens_per_second": round(sum(one.tokens for one in done) / outcomes.wall, 1),
        "requests_per_second": round(len(done) / outcomes.wall, 3),
        "wall_s": round(outcomes.wall, 2),
    }


def spread(name: str, values: Sequence[float]) -> Figures:
    """The median and the percentiles (nearest rank) of times in seconds, in milliseconds."""
    ordered = sorted(values)
    late = {f"{name}_p{percent}": ordered[-(-len(ordered) * percent // 100) - 1] for percent in PERCENTILES}
    middle = {f"{name}_median": statistics.median(ordered)}
    return {key: round(seconds * 1000, 1) for key, seconds in (middle | late).items()}
