# SPDX-License-Identifier: Apache-2.0
"""The classes of requests, and the caller whose share of a worker's seats and steps a request takes
(docs/decisions/116).

A request's place is one number: the lowest goes first. Its class is the place's band, in which the number is the
`priority` that the client states.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

# The width of a band: any priority that a client can state fits into it.
BAND = 1 << 32


class ServiceClass(IntEnum):
    """A class by its rank. Those of the last one give way to all others, also in the middle of an answer."""

    INTERACTIVE = -1
    STANDARD = 0
    BATCH = 1

    @property
    def word(self) -> str:
        """The class as the key file names it."""
        return self.name.lower()

    @property
    def gives_way(self) -> bool:
        return self is ServiceClass.BATCH

    def place(self, priority: int = 0) -> int:
        """Return the place of a request of this class."""
        return int(self) * BAND + priority

    @property
    def first(self) -> int:
        """The lowest place of the class."""
        return self.place(-(BAND // 2))


def class_of(place: int) -> ServiceClass:
    """Return the class of a place; of one that no request can have the nearest."""
    return ServiceClass(min(max(-1, (place + BAND // 2) // BAND), 1))


def priority_of(place: int) -> int:
    """Return the priority that the client of a place stated."""
    return place - class_of(place).place()


# The part of all service that a class has at least while it has something waiting, whatever the classes before it want.
# A flood of interactive requests makes standard four times as slow at most, and class batch takes no more from the
# others than what two measurements of one load differ by.
GUARANTEED: Mapping[ServiceClass, float] = MappingProxyType({ServiceClass.STANDARD: 1 / 4, ServiceClass.BATCH: 1 / 20})
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

    def place(self, place: int) -> int:
        """Return the place that workers know. They tell two classes apart: what gives way, and all others in the order
        of admission."""
        return (ServiceClass.BATCH if self.gives_way else ServiceClass.STANDARD).place(priority_of(place))


EVERYBODY = FairShare()
