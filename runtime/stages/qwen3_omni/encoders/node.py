# SPDX-License-Identifier: Apache-2.0
"""The stage of encoders: the recordings and images of a prompt to rows, which the Thinker's workers take as items."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.graph.medium import MEDIA, MEDIA_UNIT, Medium, media_of
from pontil.runtime.stages.nodes.log_mel import mel_filters
from pontil.runtime.stages.nodes.node import TEXT, NodeInput, Pieces, TaskInput, WalkValues
from pontil.runtime.stages.qwen3_omni.encoders.audio import AudioEncoder
from pontil.runtime.stages.qwen3_omni.encoders.features import patch_rows, sound_features
from pontil.runtime.stages.qwen3_omni.encoders.forms import ImageForm
from pontil.runtime.stages.qwen3_omni.encoders.vision import VisionEncoder

# Returns the rows of a medium, float32 [rows, 1 + layers, hidden_size], of the bytes that stand for it.
Encode = Callable[[Medium, memoryview], Tensor]


class SoundEncoding:
    """The rows of a recording: of float32 samples, the lowest byte first, 16,000 a second."""

    def __init__(self, encoder: AudioEncoder) -> None:
        self.encoder, self.filters = encoder, mel_filters(encoder.config.bands)

    def __call__(self, medium: Medium, data: memoryview) -> Tensor:
        if len(data) % 4:
            raise RequestError("a recording has no whole samples", status=503)
        features = sound_features(np.frombuffer(data, "<f4"), self.filters)
        return self.encoder.encode(features).unsqueeze(1)


class ImageEncoding:
    """The rows of an image: of its pixels in three colours, in the size in which it enters."""

    def __init__(self, encoder: VisionEncoder, form: ImageForm) -> None:
        self.encoder, self.form = encoder, form

    def __call__(self, medium: Medium, data: memoryview) -> Tensor:
        config = self.encoder.config
        height, width = (count * config.merge * config.patch for count in (medium.lines, medium.columns))
        if len(data) != height * width * 3:
            raise RequestError("an image has other pixels than its rows need", status=503)
        pixels = torch.from_numpy(np.frombuffer(data, np.uint8).reshape(height, width, 3).copy())
        grid = 1, medium.lines * config.merge, medium.columns * config.merge
        rows, deep = self.encoder.encode(patch_rows(pixels.permute(2, 0, 1), config, self.form), grid)
        return torch.cat((rows.unsqueeze(1), deep.transpose(0, 1)), 1)


class MediaNode:
    """A StageNode. A pass makes one item: rows of one medium, in the order of the prompt, at most MEDIA_UNIT. It has no
    outputs for the client."""

    kind, sample_rate, one_per_chunk = TEXT, None, False

    def __init__(self, encoders: Mapping[str, Encode], identity: str) -> None:
        self.encoders, self.identity = encoders, identity

    def begin(self, task: TaskInput) -> "Encoding":
        media, data = media_of(task.options), task.data or b""
        if unknown := sorted({one.kind for one in media} - self.encoders.keys()):
            raise RequestError(f"this model has no encoder of the kind {unknown[0]}")
        if not media or sum(one.size for one in media) != len(data):
            raise RequestError("the bytes of recordings and images are not those of the prompt", status=503)
        return Encoding(self.encoders, media, data)


class Encoding:
    """The media of one prompt, one after the other. `made` are the items of the present one that are left."""

    def __init__(self, encoders: Mapping[str, Encode], media: Sequence[Medium], data: bytes) -> None:
        self.encoders, self.left, self.made = encoders, deque(parts_of(media, data)), deque[Tensor]()

    def feed(self, given: NodeInput) -> Pieces:
        if not self.made:
            medium, data = self.left.popleft()
            rows = self.encoders[medium.kind](medium, data)
            if len(rows) != medium.rows:
                raise RequestError(f"a medium has {len(rows)} rows, and {medium.rows} positions", status=503)
            self.made.extend(rows.split(MEDIA_UNIT))
        yield None
        item = self.made.popleft()
        return WalkValues({MEDIA: item.numpy()}, goes_on=bool(self.made or self.left))


def parts_of(media: Sequence[Medium], data: bytes) -> Iterator[tuple[Medium, memoryview]]:
    view, place = memoryview(data), 0
    for one in media:
        yield one, view[place : place + one.size]
        place += one.size
