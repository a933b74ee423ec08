# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Omni's Talker as a stage: its rows, and its frames."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pontil.runtime.engine.sampling.sampler import uniform
from pontil.runtime.engine.sequences.streamed import PositionAngles
from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.stages.graph.catalog import PROMPT_UNIT
from pontil.runtime.stages.graph.stream_buffer import StreamFault
from pontil.runtime.stages.qwen3_omni.config import TalkerConfig
from pontil.runtime.stages.qwen3_omni.talker import Talker
from pontil.runtime.stages.qwen3_omni.talker_input import TalkerInput
from pontil.runtime.stages.streams.state_stream import units_of

# Returns the angles of the rows that are made of this prompt of the Thinker, with these options; None: as places say.
FindAngles = Callable[[Sequence[int], Mapping[str, Any]], PositionAngles | None]


class OmniTalker:
    """A TalkerStage, and its FrameMaker."""

    def __init__(self, talker: Talker, find_angles: FindAngles) -> None:
        self.talker, self.find_angles = talker, find_angles

    @property
    def maker(self) -> "OmniTalker":
        return self

    def frames(self, rows: Sequence[tuple[int, int, int, bool]], hidden: Tensor) -> list[list[int]]:
        first = torch.tensor([token for _, _, token, _ in rows], device=hidden.device)
        groups = range(1, self.talker.config.groups)
        numbers = [
            None if greedy else [uniform(seed, 0, position, group) for group in groups]
            for seed, position, _, greedy in rows
        ]
        codes, _ = self.talker.frames(self.talker.decoder.normed(hidden), first, numbers)
        made: list[list[int]] = codes.tolist()
        return made

    def rows(self, prompt: Sequence[int], options: Mapping[str, Any]) -> "OmniRows":
        config = self.talker.config
        names = [name for name, _ in config.speakers]
        voice = options.get("voice") or names[0]
        speaker = config.speaker(voice) if isinstance(voice, str) else None
        if speaker is None:
            raise RequestError(f"this model has no voice {voice!r}: choose one of {', '.join(names)}", param="voice")
        try:
            return OmniRows(self.talker, TalkerInput(self.talker, prompt, speaker))
        except ModelError as error:
            raise RequestError(str(error), param="messages") from None

    def angles(self, prompt: Sequence[int], options: Mapping[str, Any]) -> PositionAngles | None:
        return self.find_angles(prompt, options)

    def is_frame(self, codes: Sequence[int]) -> bool:
        """Return whether codes that came with a message can be a frame."""
        return is_frame(self.talker.config, codes)


class OmniRows:
    """A RowBuilder of one run."""

    def __init__(self, talker: Talker, arriving: TalkerInput) -> None:
        self.talker, self.arriving = talker, arriving

    @property
    def prompt_rows(self) -> int:
        return self.arriving.rows

    @property
    def begins_in_prompt(self) -> bool:
        return self.arriving.plan.text_start < self.arriving.plan.length

    def push(self, states: Tensor) -> None:
        left = self.arriving.plan.length - self.arriving.arrived
        shape = min(PROMPT_UNIT, left) if left > 0 else 1, 2, self.talker.config.thinker_size
        if states.dtype != torch.float32 or states.shape != shape or not bool(torch.isfinite(states).all()):
            raise StreamFault("an item is not the states of a position of this run")
        self.arriving.push(states[:, 0], states[:, 1])

    def end(self) -> None:
        if self.arriving.arrived < self.arriving.plan.length:
            raise StreamFault("the states end before those of the prompt are here")
        self.arriving.end()

    def is_behind(self, frame: Sequence[int], next_index: int) -> bool:
        # The first state of the answer ends the prompt, if the answer has one.
        return next_index - units_of(self.arriving.plan.length) in (0, 1) and is_frame(self.talker.config, frame)

    def resume(self, next_index: int) -> None:
        self.arriving.resume(next_index - units_of(self.arriving.plan.length))

    def take_prompt(self) -> list[Tensor]:
        return list(self.arriving.take_prompt())

    def step(self, number: int, frame: Sequence[int]) -> Tensor | None:
        text = self.arriving.text(number)
        return None if text is None else self.talker.embed_frame(frame) + text


def is_frame(config: TalkerConfig, codes: Sequence[int]) -> bool:
    sizes = config.decoder.vocab_size, config.predictor.vocab_size
    return len(codes) == config.groups and all(0 <= code < sizes[group > 0] for group, code in enumerate(codes))
