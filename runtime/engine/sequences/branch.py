# SPDX-License-Identifier: Apache-2.0
"""The choices of one request that a sequence stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Branch:
    """The choices whose tokens are those of one sequence.

    A request with n > 1 choices is one sequence until its first tokens are sampled, all from the same logits; then it
    is `forked` into one for each `choice`. If only some choices continue, they are `wanted`; `given` has the first
    tokens, by choice, that must not be sampled because the client has them.
    """

    choice: int = 0
    wanted: tuple[int, ...] = ()
    given: Mapping[int, int] = field(default_factory=dict)
    forked: bool = False

    @classmethod
    def of(cls, wanted: tuple[int, ...]) -> Branch:
        """Return the stem of these choices, of all without any."""
        return cls(wanted[0] if wanted else 0, wanted)

    @property
    def leads(self) -> bool:
        """Return whether it is the first of the choices that continue, which reports what they share."""
        return self.choice == (self.wanted or (0,))[0]

    def fork(self, choice: int) -> Branch:
        """Return that of another choice; from now on this one stands for its own alone, too."""
        self.forked = True
        return Branch(choice, self.wanted, forked=True)
