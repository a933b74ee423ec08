# SPDX-License-Identifier: Apache-2.0
"""The order of classes: the first one that has something waiting, and what the others are guaranteed (decision 116).

Of each unit of service a class that waits is owed its guaranteed part, less what it is served. It is next, before the
classes ahead of it, once it is owed what its first item costs. So in any time in which it always has something waiting
it is served its part of everything, within one item of its own and one of others; what it got beyond that is not held
against it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pontil.runtime.foundation.fair_share import GUARANTEED, ServiceClass


@dataclass(slots=True)
class ClassTurns:
    """The service that each class which waits is owed, in the unit of costs."""

    owed: dict[ServiceClass, float] = field(default_factory=dict)

    def next(self, heads: Mapping[ServiceClass, float]) -> ServiceClass:
        """Return whose turn it is of the classes that wait, by what their first items cost; in the order of classes."""
        classes = iter(sorted(heads))
        first = next(classes)
        return next((each for each in classes if self.owed.get(each, 0.0) >= heads[each]), first)

    def serve(self, served: ServiceClass, cost: float, waiting: Iterable[ServiceClass]) -> None:
        """Count what a class was served while these waited, or that it was so much more or less."""
        self.owed = {
            each: max(0.0, self.owed.get(each, 0.0) + GUARANTEED[each] * cost - (cost if each is served else 0.0))
            for each in waiting
            if each in GUARANTEED
        }

    def copy(self) -> "ClassTurns":
        return replace(self)
