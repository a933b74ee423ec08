# SPDX-License-Identifier: Apache-2.0
"""SNAC as a stage: windows of codes to sound."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.nodes.node import AUDIO, NOTHING, NodeInput, Pieces, TaskInput
from pontil.runtime.stages.nodes.wav import to_pcm16
from pontil.runtime.stages.orpheus.config import FRAME_CODES, SAMPLE_RATE
from pontil.runtime.stages.orpheus.snac import Snac

# Frames that are shown after one before it is heard: the convolutions look ahead.
AHEAD = 2


class SnacNode:
    """A StageNode. A window of codes is one output: the frame that has one before it and two after it in the window,
    and those at the beginning and at the end of the sound with what there is."""

    kind, sample_rate, one_per_chunk = AUDIO, SAMPLE_RATE, True

    def __init__(self, snac: Snac, identity: str) -> None:
        self.snac, self.identity = snac, identity

    def begin(self, task: TaskInput) -> "SnacNode":
        if task.data is not None:
            raise RequestError("this stage makes sound of codes: ask the model for speech")
        return self

    def feed(self, given: NodeInput) -> Pieces:
        items, context = given.of("codes")
        codes = [self.code(item) for item in (*context, *items)]
        # A frame that is not whole, at the end of all codes, has no sound.
        codes = codes[: len(codes) - len(items) % FRAME_CODES]
        frames = [codes[end - FRAME_CODES : end] for end in range(len(codes), FRAME_CODES - 1, -FRAME_CODES)][::-1]
        last = len(frames) if given.final else len(frames) - AHEAD
        first = (len(frames) - AHEAD if given.final else last - 1) if context else 0
        if first < last:
            size = self.snac.config.frame_samples
            yield to_pcm16(self.snac.decode(frames)[first * size : last * size].numpy())
        return NOTHING

    def code(self, item: NDArray[Any]) -> int:
        """Return the code of an item. One of another place in a frame counts as that of its own."""
        size = self.snac.config.codebook_size
        if item.dtype != np.int32 or item.shape != (1,) or not 0 <= item[0] < FRAME_CODES * size:
            raise RequestError("a code is not of this model", status=503)
        return int(item[0]) % size
