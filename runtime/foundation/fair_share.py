# SPDX-License-Identifier: Apache-2.0
"""The caller whose share of a worker's seats and steps a request takes."""

import hashlib
import math
from dataclasses import dataclass

from pontil.runtime.foundation.service_class import class_of

DIGEST_BYTES = 8
# Weights beyond these bounds are a mistake of whoever states them.
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6


@dataclass(frozen=True, slots=True)
class FairShare:
    """A caller by digest, and its weight relative to other callers. Requests of equal callers share with each other
    what the caller has. One that `gives_way` has what nobody else wants now."""

    caller: str = ""
    weight: float = 1.0
    gives_way: bool = False

    @classmethod
    def of(cls, caller: str, weight: float, gives_way: bool = False) -> "FairShare":
        """Return the share of a caller by name: workers need not know names."""
        digest = hashlib.blake2b(caller.encode("utf-8", "surrogateescape"), digest_size=DIGEST_BYTES)
        return cls(digest.hexdigest(), weight, gives_way)

    @classmethod
    def stated(cls, caller: str, weight: float, place: int = 0) -> "FairShare":
        """Return the share that a message states, in which any number may be wrong."""
        weight = min(max(weight, LEAST_WEIGHT), MOST_WEIGHT) if math.isfinite(weight) else 1.0
        return cls(caller, weight, class_of(place).gives_way)


EVERYBODY = FairShare()
