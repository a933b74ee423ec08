# SPDX-License-Identifier: Apache-2.0
"""The caller whose share of a worker's seats and steps a request takes."""

import hashlib
import math
from dataclasses import dataclass

DIGEST_BYTES = 8
# Weights beyond these bounds are a mistake of whoever states them.
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6


@dataclass(frozen=True, slots=True)
class FairShare:
    """A caller by digest, and its weight relative to other callers. Requests of equal callers share with each other
    what the caller has."""

    caller: str = ""
    weight: float = 1.0

    @classmethod
    def of(cls, caller: str, weight: float) -> "FairShare":
        """Return the share of a caller by name: workers need not know names."""
        digest = hashlib.blake2b(caller.encode("utf-8", "surrogateescape"), digest_size=DIGEST_BYTES)
        return cls(digest.hexdigest(), weight)

    @classmethod
    def stated(cls, caller: str, weight: float) -> "FairShare":
        """Return the share that a message states, in which any number may be wrong."""
        return cls(caller, min(max(weight, LEAST_WEIGHT), MOST_WEIGHT) if math.isfinite(weight) else 1.0)

    @property
    def is_background(self) -> bool:
        """True for the work of batches, which has what nobody else wants now."""
        return self.caller == BACKGROUND.caller


EVERYBODY = FairShare()
# The share of all batches together, behind the `BACKGROUND_PRIORITY` of which no client can ask to be. No digest of a
# caller is such a word.
BACKGROUND = FairShare("background")
BACKGROUND_PRIORITY = 1 << 31
