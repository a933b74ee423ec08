# SPDX-License-Identifier: Apache-2.0
"""The facts about the Talker and about Code2Wav. No torch here: the proxy reads them too.

A frame is a row of `groups` codes, one of each codebook. Its first code is a token of the Talker, the others are the
code predictor's.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pontil.runtime.models.config import ModelConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SPECIAL_CODES = 1024
"""The highest ids of the Talker's vocabulary are no codes. Of these only the one that ends speech may be drawn."""
SAMPLE_RATE = 24000
"""Samples of a second of speech. The configuration does not state it."""


@dataclass(frozen=True, slots=True)
class CodeSampling:
    """The parameters by which a code is drawn, if the request does not say otherwise. `top_k` 0 means all."""

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float = 1.0


FIRST_CODE = CodeSampling(temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05)
OTHER_CODES = CodeSampling(temperature=1.0, top_k=50, top_p=0.8)


@dataclass(frozen=True, slots=True)
class TextIds:
    """Ids of the Thinker's vocabulary by which the Talker finds its way in a prompt. `media` stand for positions of
    images, sounds and videos."""

    im_start: int
    user: int
    assistant: int
    tts_bos: int
    tts_eos: int
    tts_pad: int
    media: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CodecIds:
    """Ids of the Talker's vocabulary that stand at the head of an answer."""

    nothink: int
    think_bos: int
    think_eos: int
    pad: int
    bos: int


@dataclass(frozen=True, slots=True)
class TalkerConfig:
    """`decoder` makes the first code of each frame; its end token ends speech. `predictor` makes the other codes.

    `thinker_size` is the size of the Thinker's states; the second of them is taken after `accept_layer` of its layers.
    `speakers` are the voices, by their lower-case names, with their ids in the decoder's vocabulary.
    """

    decoder: ModelConfig
    predictor: ModelConfig
    groups: int
    thinker_size: int
    accept_layer: int
    text: TextIds
    codec: CodecIds
    speakers: tuple[tuple[str, int], ...]

    @property
    def suppressed(self) -> tuple[int, ...]:
        """Ids that are never drawn as a frame's first code."""
        first = self.decoder.vocab_size - SPECIAL_CODES
        return tuple(i for i in range(first, self.decoder.vocab_size) if i not in self.decoder.eos_token_ids)

    def speaker(self, name: str) -> int | None:
        """The id of a voice; names are compared without case."""
        return dict(self.speakers).get(name.lower())

    def fingerprint(self) -> str:
        return hashed(self)


@dataclass(frozen=True, slots=True)
class Code2WavConfig:
    """A decoder of frames over a sliding window, and convolutions that make `rates` times as many rows, one rate after
    the other: those of `ratios` at `hidden_size` channels, those of `rates` at half as many channels each, from
    `channels` on."""

    groups: int
    codebook_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int
    max_positions: int
    rms_norm_eps: float
    rope_theta: float
    bias: bool
    ratios: tuple[int, ...]
    rates: tuple[int, ...]
    channels: int

    @property
    def product_inputs(self) -> tuple[int, ...]:
        """The inputs of each of its products."""
        hidden = self.hidden_size
        return hidden, self.intermediate_size, self.num_heads * self.head_dim, 4 * hidden

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.ratios) * math.prod(self.rates)

    def samples(self, frames: int) -> int:
        """The samples of the first so many frames.

        Each convolution of `rates` leaves out what a next row would add to, so sound ends before its last frame does,
        by the same number of samples however many frames there are.
        """
        length = frames * math.prod(self.ratios)
        for rate in self.rates:
            length = (length - 1) * rate
        return max(0, length)

    def fingerprint(self) -> str:
        return hashed(self)


def hashed(config: "DataclassInstance") -> str:
    return hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()[:16]
