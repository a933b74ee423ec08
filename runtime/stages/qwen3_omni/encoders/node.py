# SPDX-License-Identifier: Apache-2.0
"""The stage of encoders: the recordings and images of a prompt to rows, which the Thinker's workers take as items."""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.graph.medium import ENCODER, MEDIA, MEDIA_UNIT, Medium, media_of
from pontil.runtime.stages.nodes.log_mel import mel_filters
from pontil.runtime.stages.nodes.node import TEXT, NodeInput, Pieces, TaskInput, WalkValues
from pontil.runtime.stages.qwen3_omni.encoders.audio import AudioEncoder
from pontil.runtime.stages.qwen3_omni.encoders.features import patch_rows, sound_features
from pontil.runtime.stages.qwen3_omni.encoders.forms import ImageForm
from pontil.runtime.stages.qwen3_omni.encoders.vision import VisionEncoder

# Returns the rows of a medium, float32 [rows, 1 + layers, hidden_size], of the bytes that stand for it.
Encode = Callable[[Medium, memoryview], Tensor]
# Bytes of rows that are kept of media that may come again, as in each turn of a chat: some 8,000 rows of the published
# sizes.
MOST_KEPT_BYTES = 256 << 20


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

    def __init__(self, encoders: Mapping[str, Encode], identity: str, most_kept: int = MOST_KEPT_BYTES) -> None:
        self.encoders, self.identity, self.kept = encoders, identity, KeptRows(most_kept)

    def begin(self, task: TaskInput) -> "Encoding":
        told = task.options.get(ENCODER)
        if isinstance(told, list | tuple) and list(told[:1]) != [self.identity]:
            raise RequestError("the encoder has changed since the request came: try again", status=503)
        media, data = media_of(task.options), task.data or b""
        if unknown := sorted({one.kind for one in media} - self.encoders.keys()):
            raise RequestError(f"this model has no encoder of the kind {unknown[0]}")
        if not media or sum(one.size for one in media) != len(data):
            raise RequestError("the bytes of recordings and images are not those of the prompt", status=503)
        return Encoding(partial(self.rows, task.cache_salt), parts_of(media, data))

    def rows(self, salt: str, medium: Medium, data: memoryview) -> Tensor:
        """Return the rows of a medium: those that were made of the same one before, if they are still kept."""
        key = key_of(salt, medium, data)
        rows = self.kept.find(key)
        if rows is None:
            rows = self.encoders[medium.kind](medium, data)
            if len(rows) != medium.rows:
                raise RequestError(f"a medium has {len(rows)} rows, and {medium.rows} positions", status=503)
            self.kept.keep(key, rows)
        return rows


class KeptRows:
    """The rows of the media that were asked for last, of at most so many bytes together, by digests."""

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0
        self.by_key: OrderedDict[bytes, Tensor] = OrderedDict()

    def find(self, key: bytes) -> Tensor | None:
        rows = self.by_key.get(key)
        if rows is not None:
            self.by_key.move_to_end(key)
        return rows

    def keep(self, key: bytes, rows: Tensor) -> None:
        """Keep the rows of a medium that was not found, and drop those that were not asked for for longest. Rows of
        more bytes than all may have push out nothing."""
        if rows.nbytes > self.most:
            return
        self.by_key[key] = rows
        self.bytes += rows.nbytes
        while self.bytes > self.most:
            _, dropped = self.by_key.popitem(last=False)
            self.bytes -= dropped.nbytes


def key_of(salt: str, medium: Medium, data: memoryview) -> bytes:
    """Return the digest of a medium. Callers that share no prefixes must not learn from its time that another one
    has sent it, so theirs differ."""
    digest = hashlib.blake2b(repr((salt, medium)).encode(), digest_size=32)
    digest.update(data)
    return digest.digest()


class Encoding:
    """The media of one prompt, one after the other, whose rows `encode` makes. `made` are the items of the present one
    that are left."""

    def __init__(self, encode: Encode, parts: Iterable[tuple[Medium, memoryview]]) -> None:
        self.encode, self.left, self.made = encode, deque(parts), deque[Tensor]()

    def feed(self, given: NodeInput) -> Pieces:
        if not self.made:
            self.made.extend(self.encode(*self.left.popleft()).split(MEDIA_UNIT))
        yield None
        item = self.made.popleft()
        return WalkValues({MEDIA: item.numpy()}, goes_on=bool(self.made or self.left))


def parts_of(media: Sequence[Medium], data: bytes) -> Iterator[tuple[Medium, memoryview]]:
    view, place = memoryview(data), 0
    for one in media:
        yield one, view[place : place + one.size]
        place += one.size
