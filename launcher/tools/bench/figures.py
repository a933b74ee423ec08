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
    timings = outcomes.timings
    figures: Figures = {"requests": len(timings), "failures": len(outcomes.failures)}
    if limits.given:
        kept_count = sum(limits.kept(timing) for timing in timings)
        figures["kept_share"] = round(kept_count / max(1, len(timings) + len(outcomes.failures)), 4)
        figures["goodput_per_second"] = round(kept_count / outcomes.wall, 3) if outcomes.wall else 0.0
    if not timings:
        return figures
    figures |= spread("ttft_ms", [timing.ttft for timing in timings])
    figures |= spread("tpot_ms", [timing.tpot for timing in timings])
    figures |= spread("itl_ms", [gap for timing in timings for gap in timing.gaps] or [0.0])
    figures |= spread("e2e_ms", [timing.e2e for timing in timings])
    longest = statistics.median(max(timing.gaps, default=0.0) for timing in timings)
    return figures | {
        "longest_gap_ms_median": round(longest * 1000, 1),
        "prompt_tokens": sum(timing.prompt_tokens for timing in timings),
        "output_tokens": sum(timing.tokens for timing in timings),
        "output_tokens_per_second": round(sum(timing.tokens for timing in timings) / outcomes.wall, 1),
        "requests_per_second": round(len(timings) / outcomes.wall, 3),
        "wall_s": round(outcomes.wall, 2),
    }


def spread(name: str, values: Sequence[float]) -> Figures:
    """The median and the percentiles (nearest rank) of times in seconds, in milliseconds."""
    sorted_values = sorted(values)
    late = {f"{name}_p{percent}": sorted_values[-(-len(sorted_values) * percent // 100) - 1] for percent in PERCENTILES}
    middle = {f"{name}_median": statistics.median(sorted_values)}
    return {key: round(seconds * 1000, 1) for key, seconds in (middle | late).items()}
