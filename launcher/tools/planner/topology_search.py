# SPDX-License-Identifier: Apache-2.0
"""The search for topologies: a coarse model ranks all, and the best of these are simulated and ranked again."""

from collections.abc import Sequence
from heapq import nsmallest
from math import inf
from operator import mul

from pontil.launcher.tools.bench.figures import Figures
from pontil.launcher.tools.planner.prediction import Predictor
from pontil.runtime.planner.coarse import CoarseFleet, CoarseModel, MeanRequest, WorkerSplit, splits

# Topologies that are simulated.
SIMULATED = 10


def candidates(predictor: Predictor, most: Sequence[int]) -> list[WorkerSplit]:
    """Return the ways to use up to so many workers of each profile that are worth a simulation: those that have time
    for the highest rate that is asked for, the cheapest, or those of fewest devices, before those that come closest to
    it."""
    limit, given = predictor.limits.tpot or predictor.limits.itl, predictor.given
    request = MeanRequest(*predictor.mean_lengths(), inf if limit is None else limit / 1e3)
    models = list(predictor.models.values())
    fleet = CoarseFleet([CoarseModel(one.costs, one.profile.sizes, request) for one in models])
    costs = [predictor.cost([one]) or float(one.profile.about.ranks) for one in models]
    wanted = inf if given["find_rate"] else max(given["request_rate"] or (inf,))

    def rank(split: WorkerSplit) -> tuple[bool, float, float]:
        rate = fleet.rate(split)
        return rate < wanted, sum(map(mul, split.by_kind, costs)) if rate >= wanted else -rate, -rate

    return nsmallest(SIMULATED, splits(most), key=rank)


def ranked(found: Sequence[list[Figures]], share: float) -> list[list[Figures]]:
    """Return the figures of topologies, best first: those that keep the limits under every load by their cost, or
    devices, and then the time to the first token; the others by how much of what they are asked they do."""

    def rank(rows: list[Figures]) -> tuple[float, ...]:
        last = rows[-1]
        if highest := [row["highest_request_rate"] or 0.0 for row in rows if "highest_request_rate" in row]:
            return (-min(highest),)
        kept = min(row.get("kept_share", 1.0) for row in rows)
        good = kept >= share and not any(row["failures"] for row in rows)
        output = sum(row.get("output_tokens_per_second", 0.0) for row in rows)
        if good and "kept_share" in last:
            cost = float(last["cost_per_hour" if "cost_per_hour" in last else "devices"])
            return 0.0, cost, max(row["ttft_ms_p99"] for row in rows), -output
        return 1.0, -sum(row.get("goodput_per_second", 0.0) for row in rows), -output, last["devices"]

    return sorted(found, key=rank)
