# SPDX-License-Identifier: Apache-2.0
"""The Talker's input of one request, made of the Thinker's states as they arrive."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pontil.runtime.stages.qwen3_omni.prompt_plan import ROLE_POSITIONS, plan_prompt
from pontil.runtime.stages.qwen3_omni.talker import Talker

SILENT = 4
"""Positions of the prompt's tail at which no text stands."""


class TalkerInput:
    """States arrive in the order of positions (`push`), one or many at a time, and then their end (`end`): the Thinker
    states every position that it computed, so not its last token.

    The result is the same for every division: the Talker's prompt in order (`take_prompt`), whose last row needs the
    first item of the text, and one item of the text for each frame (`text`). After the text come a mark of its end and
    then padding, without end. An answer without text has the mark in the place of its first item.
    """

    def __init__(self, talker: Talker, prompt: Sequence[int], speaker: int) -> None:
        """`prompt` are the Thinker's token ids, and `speaker` an id of the configuration. Raises ModelError for a
        prompt that cannot be answered with speech."""
        self.talker, self.plan = talker, plan_prompt(prompt, talker.config.text)
        codec = talker.config.codec
        ids = [codec.nothink, codec.think_bos, codec.think_eos, speaker, codec.pad, codec.bos]
        device = talker.decoder.device
        self.codes = talker.decoder.embed(torch.tensor(ids, dtype=torch.int64, device=device))
        self.arrived = 0
        self.ended = self.finished = False
        self.ready: list[Tensor] = []
        self.given = 0
        self.role: list[Tensor] = []
        self.items: list[Tensor] = []

    @property
    def rows(self) -> int:
        """The rows of the whole prompt, known from the start."""
        return self.plan.rows

    @property
    def complete(self) -> bool:
        """Return whether all rows of the prompt were taken."""
        return self.given == self.rows

    def resume(self, positions: int) -> None:
        """Begin behind the prompt, which is made elsewhere, of the states of so many positions of the answer: 0 or 1.
        Not for a prompt with the beginning of the text."""
        assert self.plan.text_start >= self.plan.length and self.arrived == 0
        self.arrived, self.given, self.finished = self.plan.length + positions, self.rows, True
        self.items = [self.talker.marks.padding] * positions

    @torch.inference_mode()
    def push(self, embedding: Tensor, hidden: Tensor | None) -> None:
        """Take the states of the next positions: `embedding` and `hidden` of `HiddenStates`, float32 [positions,
        thinker_size]. `hidden` is read for positions of media only, and may be None where there are none."""
        assert not self.ended, "states after their end"
        places = range(self.arrived, self.arrived + len(embedding))
        self.arrived += len(embedding)
        plan = self.plan
        told = [place for place in places if plan.uses(place) and (place >= plan.start or place not in plan.media)]
        shown = [place for place in places if place in plan.media]
        texts = projected(self.talker.project_text, embedding, told, places.start)
        assert hidden is not None or not shown, "positions of media have no second state"
        media = projected(self.talker.project_hidden, hidden, shown, places.start)
        heard = texts | media
        self.ready += [heard[place] for place in places if place in plan.heard]
        for place in told:
            if place >= plan.text_start:
                self.items.append(texts[place])
            elif place >= plan.start:
                self.role.append(texts[place])
        self.finish_prompt()

    def end(self) -> None:
        """Note that no further state comes: those of the Thinker's whole prompt are here. Idempotent."""
        assert self.arrived >= self.plan.length, "positions of the prompt have no states"
        self.ended = True
        self.finish_prompt()

    def take_prompt(self) -> Tensor:
        """Return the rows of the prompt that are known and were not yet taken, float32 [rows, hidden_size]."""
        taken, self.ready = self.ready, []
        self.given += len(taken)
        return torch.stack(taken) if taken else self.codes.new_empty(0, self.codes.shape[1])

    def text(self, frame: int) -> Tensor | None:
        """Return the item that is added to the input after frame number `frame`, float32 [hidden_size], or None if it
        has not yet arrived. The item before these is in the prompt."""
        return self.item(frame + 1)

    def item(self, number: int) -> Tensor | None:
        if number < len(self.items):
            return self.items[number]
        if not self.ended:
            return None
        return self.talker.marks.end if number == len(self.items) else self.talker.marks.padding

    def finish_prompt(self) -> None:
        """Make the prompt's tail once its parts are here: all positions of the Thinker's prompt, and the text's first
        item."""
        first = self.item(0)
        if first is None or self.arrived < self.plan.length or self.finished:
            return
        marks, self.finished = self.talker.marks, True
        # A prompt may end within the role.
        self.role += [marks.padding] * (ROLE_POSITIONS - len(self.role))
        texts = [marks.padding] * SILENT + [marks.begin, first]
        self.ready += self.role + [text + code for text, code in zip(texts, self.codes, strict=True)]


def projected(
    project: Callable[[Tensor], Tensor], states: Tensor | None, places: list[int], first: int
) -> dict[int, Tensor]:
    """The projected states of some positions, by position. The first row of `states` is of position `first`."""
    if states is None or not places:
        return {}
    made = project(states[torch.tensor(places, device=states.device) - first])
    return dict(zip(places, made, strict=True))
