# SPDX-License-Identifier: Apache-2.0
"""Facts about rows that stand for images, besides their embeddings."""

from dataclasses import dataclass

from torch import Tensor, device
from torch.nn.functional import pad


@dataclass(frozen=True, slots=True)
class MediaRows:
    """The `angles` of all rows of a tile, cosines and sines by which queries and keys are turned, each float32
    [rows, rotated / 2]; and `deep`, float32 [layers, rows, hidden_size], which is added behind each of the first
    layers: zeros for rows of text."""

    angles: tuple[Tensor, Tensor]
    deep: Tensor

    def to(self, device: device) -> "MediaRows":
        cos, sin = (part.to(device) for part in self.angles)
        return MediaRows((cos, sin), self.deep.to(device))

    def padded(self, count: int) -> "MediaRows":
        """Return these and so many rows of zeros."""
        cos, sin = (pad(part, (0, 0, 0, count)) for part in self.angles)
        return MediaRows((cos, sin), pad(self.deep, (0, 0, 0, count)))
