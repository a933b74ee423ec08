# SPDX-License-Identifier: Apache-2.0
"""A tile as plain numbers: all that a process needs to compute it, without sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.runtime.models.media_rows import MediaRows


@dataclass(frozen=True, slots=True)
class TilePlan:
    """The rows of `spans`, with their token `ids`, one after the other. `generated`: they go through products of the
    class for generated positions.

    Final hidden states are wanted of `rows`, in rising order. Of these, by their place among `rows`: the logits of
    `recorded` give logprobs of prompt tokens; those of `drawn` give new tokens.

    In a tile of a device (`on_device`) rows are padded to its buckets, and an id of -1 - place stands for the one that
    was drawn there in the step before.

    Rows that are no tokens are given by `embeddings`, float32 [rows, hidden_size]; where some stand for images, `media`
    has the rest about all of them.
    """

    generated: bool
    ids: Sequence[int]
    spans: Sequence[TileSpan]
    rows: Sequence[int]
    recorded: Sequence[int]
    drawn: Sequence[int]
    embeddings: Tensor | None = None
    on_device: bool = False
    media: MediaRows | None = None

    @property
    def positions(self) -> list[int]:
        return [position for span in self.spans for position in range(span.start, span.start + span.count)]
