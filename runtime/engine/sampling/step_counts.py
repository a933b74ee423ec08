# SPDX-License-Identifier: Apache-2.0
"""The number of tokens that one step made for each owner, from the shapes of tensors that stay where they are (rule A1,
A2)."""

from collections.abc import Iterable

from torch import Tensor

# A request's id and the choice.
Owner = tuple[str, int]


class StepCounts:
    """Accepted tokens by owner. Reads no element of any tensor, so counting copies nothing from or to a device."""

    def __init__(self, stated: Iterable[tuple[Owner, Tensor | None, int | None]] = ()) -> None:
        self.by_owner: dict[Owner, int] = {}
        for owner, tokens, accepted in stated:
            self.state(owner, tokens, accepted)

    def state(self, owner: Owner, tokens: Tensor | None, accepted: int | None = None) -> None:
        """State an owner's tokens: ids [drawn] or [drawn, codebooks]. The count is the size of the first axis, or the
        number of `accepted` positions if drafts among them were rejected. None is 0. A second statement for an owner in
        the same step, for another destination, is about the same tokens and counts once."""
        drawn = 0 if tokens is None else tokens.shape[0]
        self.by_owner.setdefault(owner, drawn if accepted is None else min(accepted, drawn))

    def of(self, owner: Owner) -> int:
        """The owner's count; 0 for one without a statement."""
        return self.by_owner.get(owner, 0)

    @property
    def total(self) -> int:
        return sum(self.by_owner.values())
