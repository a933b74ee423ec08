# SPDX-License-Identifier: Apache-2.0
"""The state from which one sequence's next tokens are guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pontil.runtime.engine.sequences.prompt_lookup import PromptLookup
from pontil.runtime.engine.sequences.target_states import TargetStates

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class DraftState:
    """The draft that came with a handoff, `handed`, which is used once; an index of what stood before, built when first
    needed; and the target's states of the newest positions, where a draft layer reads them."""

    handed: tuple[int, ...] = ()
    lookup: PromptLookup | None = None
    target_states: TargetStates | None = None

    def guess(self, prompt: list[int], output: list[int], count: int, is_new: bool) -> tuple[int, ...]:
        """Return tokens that a handoff brought, if none was generated here yet (`is_new`), or that followed an earlier
        occurrence of the last ones."""
        handed, self.handed = self.handed[:count], ()
        if handed and is_new:
            return handed
        if self.lookup is None:
            self.lookup = PromptLookup()
        self.lookup.follow(prompt, output)
        return self.lookup.propose(count)

    def record(self, first: int, states: list[Tensor]) -> None:
        """Record the target's states of positions from `first` on, each float32 [hidden_size]."""
        if self.target_states is None:
            self.target_states = TargetStates(first, [])
        self.target_states.record(first, states)

    def fork(self) -> DraftState:
        return DraftState(target_states=None if self.target_states is None else self.target_states.copy())
