# SPDX-License-Identifier: Apache-2.0
"""The recordings and images of a chat, and the way in which the model's stages answer about them."""

from collections.abc import Sequence
from dataclasses import dataclass

from pontil.runtime.proxy.requests.generation import Generation, PromptWork
from pontil.runtime.stages.media.reader import PromptMedia
from pontil.runtime.stages.runs.entry import RunEntry


@dataclass(frozen=True, slots=True)
class ShownMedia:
    """GivenMedia in `given`, whose rows a stage encodes."""

    given: PromptMedia
    runs: RunEntry

    @property
    def prompt_details(self) -> dict[str, int]:
        return self.given.prompt_details

    def expanded(self, ids: Sequence[int]) -> list[int]:
        return self.given.expanded(ids)

    def beginning(self, ids: Sequence[int]) -> list[int]:
        return self.given.beginning(ids)

    def work(self, work: Generation) -> PromptWork:
        made = self.runs.answer(work.prompt, work.params, self.given.options(work.prompt), self.given.data)
        made.wish = work.wish
        return made
