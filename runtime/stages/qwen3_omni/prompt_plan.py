# SPDX-License-Identifier: Apache-2.0
"""The use that the Talker makes of each position of the Thinker. No torch here.

The Talker hears all turns of the user, and of the assistant only the last one, which it speaks: three positions that
name the role, and then the text, from the prompt's own end on if the answer was begun there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pontil.runtime.errors import ModelError
from pontil.runtime.stages.qwen3_omni.config import TextIds

ROLE_POSITIONS = 3
TAIL = 6
"""Positions of the Talker's prompt after those of the role: no text stands at the first four, then its begin mark, then
its first item."""


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """`heard` are positions of the user's turns, `media` those of them that stand for images, sounds or videos, and
    `start` is the first position of the last turn of the assistant. The prompt has `length` positions."""

    length: int
    heard: frozenset[int]
    media: frozenset[int]
    start: int

    @property
    def rows(self) -> int:
        """The positions of the Talker's prompt."""
        return len(self.heard) + ROLE_POSITIONS + TAIL

    def uses(self, place: int) -> bool:
        """Return whether the Talker reads the states of a position. It reads the second of them for media only."""
        return place >= self.start or place in self.heard

    @property
    def text_start(self) -> int:
        """The Thinker's position with the first item of the text."""
        return self.start + ROLE_POSITIONS


def plan_prompt(prompt: Sequence[int], ids: TextIds) -> PromptPlan:
    """Plan for the Thinker's prompt. Raises ModelError if no turn of the assistant begins in it."""
    starts = [
        place
        for place in range(len(prompt) - 1)
        if prompt[place] == ids.im_start and prompt[place + 1] == ids.assistant
    ]
    if not starts:
        raise ModelError("speech needs a prompt in which a turn of the assistant begins: send a chat")
    heard, turn = set(), 0
    for place, token in enumerate(prompt):
        turn = place if token == ids.im_start else turn
        # Of a turn that ends with its first mark, that mark is the role.
        if prompt[min(turn + 1, len(prompt) - 1)] == ids.user:
            heard.add(place)
    media = frozenset(place for place in heard if prompt[place] in ids.media)
    return PromptPlan(len(prompt), frozenset(heard), media, starts[-1])
