# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Omni's Code2Wav as a node: frames of codes to sound."""

from collections.abc import Iterator

import numpy as np
import torch

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.nodes.node import AUDIO, Items, NodeInput
from pontil.runtime.stages.qwen3_omni.code2wav import Code2Wav
from pontil.runtime.stages.qwen3_omni.config import SAMPLE_RATE

LOUDEST = 32767


class Code2WavNode:
    """A StageNode. Each chunk of frames is one output; the connection's policy cuts them alike for every attempt."""

    kind, sample_rate, one_per_chunk = AUDIO, SAMPLE_RATE, True

    def __init__(self, code2wav: Code2Wav, identity: str) -> None:
        self.code2wav, self.identity = code2wav, identity

    def begin(self, task: NodeInput) -> "FrameRun":
        if task.data is not None:
            raise RequestError("this model speaks its own answers only: use a chat with audio")
        return FrameRun(self.code2wav)


class FrameRun:
    """One answer's sound."""

    def __init__(self, code2wav: Code2Wav) -> None:
        self.code2wav = code2wav

    def feed(self, items: Items, context: Items, final: bool) -> Iterator[bytes | None]:
        if not items:
            return
        frames, config = [*context, *items], self.code2wav.config
        alike = all(frame.dtype == np.int32 and frame.shape == (1, config.groups) for frame in frames)
        if not alike or any(frame.min() < 0 or frame.max() >= config.codebook_size for frame in frames):
            raise RequestError("a frame is not of this model", status=503)
        yield pcm16(self.code2wav.decode(torch.from_numpy(np.concatenate(frames).astype(np.int64)), len(context)))


def pcm16(samples: torch.Tensor) -> bytes:
    """Return samples in [-1, 1] as 16-bit numbers, the lowest byte first."""
    return (samples.clamp(-1, 1) * LOUDEST).round().to(torch.int16).numpy().astype("<i2").tobytes()
