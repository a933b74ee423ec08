# SPDX-License-Identifier: Apache-2.0
"""The search for topologies: a coarse model ranks all, and the best of these are simulated and ranked again."""

from collections.abc import Sequence
from math import inf

from pontil.launcher.tools.bench.figures import Figures
from pontil.launcher.tools.planner.prediction import Predictor
from pontil.runtime.planner.coarse import CoarseModel, MeanRequest, topologies
from pontil.runtime.planner.planned_site import PlannedTopology

# Topologies that are simulated.
SIMULATED = 10


def candidates(predictor: Predictor, most_devices: int) -> list[PlannedTopology]:
    """Return the topologies of up to so many devices that are worth a simulation: those that have time for the highest
    rate that is asked for, of fewest devices, before those that come closest to it."""
    limit, given = predictor.limits.tpot or predictor.limits.itl, predictor.given
    request = MeanRequest(*predictor.mean_lengths(), inf if limit is None else limit / 1e3)
    model = CoarseModel(predictor.model.costs, predictor.model.profile.sizes, request)
    wanted = inf if given["find_rate"] else max(given["request_rate"] or (inf,))

    def rank(topology: PlannedTopology) -> tuple[bool, float, float]:
        rate = model.rate(topology)
        return rate < wanted, topology.workers if rate >= wanted else -rate, -rate

    most_workers = most_devices // predictor.model.profile.about.ranks
    return sorted(topologies(most_workers, given["disagg"]), key=rank)[:SIMULATED]


def ranked(found: Sequence[list[Figures]], share: float) -> list[list[Figures]]:
    """Return the figures of topologies, best first: those that keep the limits under every load by their cost, or
    devices, and then the time to the first token; the others by how much of what they are asked they do."""

    def rank(rows: list[Figures]) -> tuple[float, ...]:
        last = rows[-1]
        if "highest_request_rate" in last:
            return (-(last["highest_request_rate"] or 0.0),)
        kept = min(row.get("kept_share", 1.0) for row in rows)
        good = kept >= share and not any(row["failures"] for row in rows)
        output = sum(row.get("output_tokens_per_second", 0.0) for row in rows)
        if good and "kept_share" in last:
            return 0.0, last["devices"], max(row["ttft_ms_p99"] for row in rows), -output
        return 1.0, -sum(row.get("goodput_per_second", 0.0) for row in rows), -output, last["devices"]

    return sorted(found, key=rank)
