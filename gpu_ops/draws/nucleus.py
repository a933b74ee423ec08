# SPDX-License-Identifier: Apache-2.0
"""Top-p cuts of single rows in host memory, found without putting all ids in order.

A cut is guessed from masses that were rounded in another way than those that define it (`kept_places` in `sampling`:
the softmax of the ordered logits), and is used only where no such rounding could move it. So its ids are those that
the order of the whole row gives; where that is in doubt, the caller has to look there.
"""

import math
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

Floats = NDArray[numpy.float32]
Ids = NDArray[numpy.int64]

# Places are found by sorting once there are no more than this.
FEW = 2048
# The number of ids, spread over the row, from which the place of the cut is guessed.
PROBES = 512
# Guesses at a logit below the cut and at one above it, by the mass below them, as multiples of the mass that is cut.
GUESSES = (0.6, 1.5)
# The share of the whole mass by which a sum may be wrong. A probability is an exponential, which is a function of the
# logit alone, times a factor common to the row, rounded by at most 2^-24 of itself. A cut compares two such sums in
# each of two softmaxes, so rounding moves it by no more than 2^-22; and all that is lost by rounding to whole units of
# 2^-48, or in sums in float64, is below 2^-28 for a million ids.
DOUBT = 2.0**-22 + 2.0**-27


@dataclass(frozen=True, slots=True)
class Nucleus:
    """The kept ids of a row in rising order, and their probabilities float32, both [kept]."""

    ids: Ids
    masses: Floats


def nucleus(logits: Floats, masses: Floats, total: float, top_p: float) -> Nucleus | None:
    """The fewest ids with the highest logits that reach top_p of the total mass, of equal logits the first ids; None
    where rounding might matter.

    logits and masses [vocabulary]: no NaN, and a mass is 0 or grows with its logit, but for rounding.
    """
    target = top_p * total
    below, above = guesses(logits, masses, total - target)
    ids = numpy.flatnonzero(logits >= below)
    candidates, candidate_masses = logits[ids], masses[ids]
    if float(candidate_masses.sum(dtype=numpy.float64)) < target:
        ids, candidates, candidate_masses = numpy.arange(len(logits)), logits, masses
    cut_place = place_of_cut(candidates, candidate_masses, target, above)
    if cut_place is None:
        return None
    lowest, count = cut_place
    kept_places = numpy.flatnonzero(candidates >= lowest)
    if len(kept_places) > count:
        surplus = numpy.flatnonzero(candidates[kept_places] == lowest)[count - len(kept_places) :]
        kept_places = numpy.delete(kept_places, surplus)
    result = Nucleus(ids[kept_places], candidate_masses[kept_places])
    kept_mass = float(result.masses.sum(dtype=numpy.float64))
    before = kept_mass - float(result.masses[candidates[kept_places].argmin()])
    doubt = DOUBT * total
    if kept_mass - doubt < target or (count > 1 and before + doubt >= target):
        return None
    return result


def guesses(logits: Floats, masses: Floats, cut: float) -> list[float]:
    """Logits that the cut probably lies between, from a few ids: what is cut are many small masses."""
    step = math.ceil(len(logits) / PROBES)
    # Sorted by themselves, masses are in the order of their logits but for rounding.
    cumulative = numpy.sort(masses[::step]).cumsum()
    rising = numpy.sort(logits[::step])
    last = len(rising) - 1
    return [float(rising[min(int(cumulative.searchsorted(times * cut / step)), last)]) for times in GUESSES]


def place_of_cut(logits: Floats, masses: Floats, target: float, pivot: float) -> tuple[float, int] | None:
    """The lowest logit that is kept and the number of ids that are kept, if sums of masses are exact.

    Parts the logits by a pivot, and goes on with the side on which the cut lies, until few are left to be sorted."""
    above, count = 0.0, 0
    while len(logits) > FEW:
        upper = logits >= pivot
        places = numpy.flatnonzero(upper)
        upper_masses = masses[places]
        mass = float(upper_masses.sum(dtype=numpy.float64))
        if above + mass < target:
            above, count = above + mass, count + len(places)
            lower = numpy.flatnonzero(~upper)
            logits, masses = logits[lower], masses[lower]
            if not len(lower):
                return None
        elif len(places) < len(logits):
            logits, masses = logits[places], upper_masses
        else:
            # Most are equal to their lowest.
            break
        pivot = middle(logits)
    cumulative = numpy.sort(masses)[::-1].astype(numpy.float64).cumsum()
    place = int(cumulative.searchsorted(target - above))
    if place == len(logits):
        return None
    return float(numpy.sort(logits)[-1 - place]), count + place + 1


def middle(values: Floats) -> float:
    """Approximate the median."""
    probes = values[:: len(values) // 64 + 1]
    return float(numpy.partition(probes, len(probes) // 2)[len(probes) // 2])
